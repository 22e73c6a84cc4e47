"""S4-mlp-c, S4-mlp-d, S4-mlp-e: the MLP is a memory of keys and values, and its values promote what follows its keys.

S4 (Dobriban), "Interpreting MLP Layers" (Sukhbaatar et al. 2015, Geva et al. 2020). The MLP's output is a sum of values
(columns of W_out) weighted by how well keys (rows of W_in) match the stream; with softmax in place of the activation it
is attention over pairs that do not depend on the text. In trained models the token that a value raises most agrees
with the token that follows where its key matches best, well above chance: three starts are averaged.
"""

from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import svg
from character_model import character_models, held_out_windows
from pellucid import LanguageModel
from pellucid.model.tap import Recorder
from pellucid.reference.attention import multi_head_concat
from pellucid.reference.feedforward import key_value_memory, neural_memory
from pellucid.reference.functions import relu

WINDOWS, SHUFFLES = 1000, 200


def memories(model: LanguageModel, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a block's MLP, [d_ff, d_model] each."""
    mlp = model.network.blocks[layer].mlp
    return mlp.up[0].weight.detach(), mlp.down.weight.detach().T


@torch.no_grad()
def identity_errors(model: LanguageModel) -> dict[str, float]:
    """The largest differences, in float64, between the MLP and the sum over memories, and NM and attention."""
    network = model.network.double()
    names = ["norm_2", "mlp_out"]
    inputs, _ = held_out_windows(model, 4)
    worst = {"memory_error": 0.0, "attention_error": 0.0}
    for l, block in enumerate(network.blocks):
        tap = Recorder(keep=[f"blocks.{l}.{name}" for name in names])
        network(inputs, tap=tap)
        e, out = (tap.values[f"blocks.{l}.{name}"][0].numpy() for name in names)
        K, V = (m.numpy().T for m in memories(model, l))
        # biases are a key's threshold and a value that always fires
        b_in, b_out = block.mlp.up[0].bias.numpy(), block.mlp.down.bias.numpy()
        summed = sum(np.outer(relu(e @ K[:, i] + b_in[i]), V[:, i]) for i in range(K.shape[1])) + b_out
        worst["memory_error"] = max(worst["memory_error"], float(np.abs(summed - out).max()))
        with_one = np.concatenate([e, np.ones((len(e), 1))], 1)
        by_reference, _ = key_value_memory(with_one, np.vstack([K, b_in]), V, relu)
        worst["memory_error"] = max(worst["memory_error"], float(np.abs(by_reference + b_out - out).max()))
        # softmax instead: a head without a mask that reads d_ff fixed places (key, value)
        I, O = np.eye(len(K))[None], np.zeros((1, *K.shape[:1] * 2))
        pairs, on_key, on_value = np.hstack([K.T, V.T]), np.concatenate([I, O], 2), np.concatenate([O, I], 2)
        read = multi_head_concat(e, I, on_key, on_value, I[0], Z=pairs)
        worst["attention_error"] = max(worst["attention_error"], float(np.abs(neural_memory(e, K, V) - read).max()))
    model.network.float()
    return worst


@torch.no_grad()
def agreements(model: LanguageModel) -> tuple[list[float], list[float]]:
    """By layer, the share of memories whose value raises most the token after the key's best match, and shuffled.

    The best match is sought in windows of the text's last tenth. Shuffled: the same with values dealt to other keys.
    """
    network = model.network
    inputs, targets = held_out_windows(model, WINDOWS, seed=1)
    names = [f"blocks.{l}.mlp.post" for l in range(len(network.blocks))]
    tap = Recorder(keep=names)
    network(inputs, tap=tap)
    generator = torch.Generator().manual_seed(0)
    true, shuffled = [], []
    for l, name in enumerate(names):
        _, values = memories(model, l)
        promoted = (values @ (network.unembed.weight * network.final_norm.gain).T).argmax(1)
        follows = targets.flatten()[tap.values[name].flatten(0, 1).argmax(0)]
        true.append(float((promoted == follows).float().mean()))
        dealt = [promoted[torch.randperm(len(promoted), generator=generator)] for _ in range(SHUFFLES)]
        shuffled.append(float((torch.stack(dealt) == follows).float().mean()))
    return true, shuffled


def main(models: Sequence[LanguageModel] | None = None) -> dict[str, float]:
    """Identity errors, and agreement by layer against shuffled values, means over the models; draws the latter.

    One model has only 256 memories a layer and depends on its start, so the claim is about the mean of several models.
    """
    models = models or character_models()
    results = identity_errors(models[0])
    measured = np.array([agreements(model) for model in models])  # [model, trained or shuffled, layer]
    true, shuffled = measured.mean(0).tolist()
    title = f"value's token = token after the key's best match, {len(models)} models"
    table = Table("layer", "agreement", "shuffled", "ratio", "of each model", title=title)
    for l, (a, b) in enumerate(zip(true, shuffled, strict=True)):
        ratios = ", ".join(f"{one / other:.1f}" for one, other in measured[:, :, l])
        table.add_row(str(l), f"{a:.1%}", f"{b:.1%}", f"{a / b:.1f}", ratios)
        results |= {f"agreement_{l}": a, f"shuffled_{l}": b}
    Console().print(table)
    print(f"MLP - sum over memories {results['memory_error']:.1e}, NM - attention {results['attention_error']:.1e}")
    series = {"trained": [100 * a for a in true], "shuffled": [100 * b for b in shuffled]}
    title = "Values that raise the token after their key's best match"
    svg.bars("key_value_memories", title, "percent", [f"layer {l}" for l in range(len(true))], series)
    assert max(results["memory_error"], results["attention_error"]) < 1e-12
    assert all(a >= 2 * b for a, b in zip(true, shuffled, strict=True)), "at least twice shuffled in every layer"
    return results


if __name__ == "__main__":
    main()
