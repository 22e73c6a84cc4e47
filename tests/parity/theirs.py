"""What the comparisons with other projects share: a tiny model of theirs as a network of ours, and three-way logits."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.hub import architecture_of, to_ours
from pellucid.model import Transformer
from pellucid.model.weights import load_state, state_of
from pellucid.reference import transformer as reference

TOLERANCE = 1e-12


def perturb(model: nn.Module, seed: int = 0) -> nn.Module:
    """In float64 and eval mode, no gain 1, no bias 0 (one of BART's is a buffer), and no two tensors alike.

    What is not trained is left: the sines and cosines of Marian's positions.
    """
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    biases = [(name, p) for name, p in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        for name, p in [*trained, *biases]:
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            gain = p.ndim == 1 and not name.endswith("bias")
            p.copy_(1 + 0.3 * noise if gain else noise * (0.4 if p.ndim == 1 else p.size(-1) ** -0.5))
    return model


def as_ours(model: nn.Module, config: Mapping[str, Any]) -> tuple[Transformer, dict[str, Any]]:
    """Their model as a network of ours, and its weights for the reference."""
    a = architecture_of(config)
    network = Transformer(a).double().eval()
    load_state(network, to_ours(model.state_dict(), config))
    return network, numpy_weights(network)


def numpy_weights(network: Transformer) -> dict[str, Any]:
    return {name: p.numpy() for name, p in state_of(network).items()}


def both(network: Transformer, tokens: Tensor, **reading: Any) -> dict[str, Tensor]:
    """Logits of the engine and of the reference; an encoder reads `source_of(tokens)`, under `encoder_mask`."""
    arrays = {name: value.numpy() for name, value in reading.items()}
    a, weights, hidden = network.architecture, numpy_weights(network), arrays.pop("encoder_mask", None)
    if a.encoder is not None:
        arrays["source"] = reference.encode(a, weights, source_of(tokens).numpy(), mask=hidden)
    slow = reference.forward(a, weights, tokens.numpy(), **arrays)
    return {"engine": our_logits(network, tokens, **reading), "reference": torch.from_numpy(slow)}


def our_logits(network: Transformer, tokens: Tensor, encoder_mask: Tensor | None = None, **reading: Any) -> Tensor:
    """The engine's, the encoder reading other tokens."""
    with torch.no_grad():
        if network.encoder is not None:
            reading["source"] = network.encode(source_of(tokens), encoder_mask)
        return network(tokens, **reading)


def logits_of(model: Any, tokens: Tensor, **reading: Any) -> Tensor:
    """Theirs, the encoder reading the same tokens as ours."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            return model(input_ids=source_of(tokens), decoder_input_ids=tokens, **reading).logits
        return model(tokens, **reading).logits


def source_of(tokens: Tensor) -> Tensor:
    """What an encoder reads beside these tokens: seven, in another order."""
    return tokens.repeat(1, 7)[:, :7].flip(0, 1).contiguous()


def draw(a: Architecture, batch: int = 3, n: int | None = None, seed: int = 0) -> Tensor:
    """Random tokens [batch, n], the whole context unless n is given."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, a.n_vocab, (batch, a.n_ctx if n is None else n), generator=generator)


def farthest(given: Tensor, expected: Tensor) -> float:
    """max |given - expected|, absolute: the logits compared here are of size 1 to 10."""
    assert given.shape == expected.shape
    assert expected.abs().max() > 0.5
    return (given - expected).abs().max().item()
