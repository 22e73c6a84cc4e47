"""torch.nn.Transformer, encoder and decoder with cross-attention, and ours are one function (Vaswani et al. 2017).

Its tensors go through the interpreter of the families, so this is also how short a new family is. torch's
module begins behind the embedding and ends before the readout, which are ours here.
"""

import pytest
import torch
from theirs import TOLERANCE, draw, farthest, numpy_weights, perturb
from torch import nn

from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.hub.families import to_ours
from pellucid.hub.tables import ConfigField, Family, TensorRow
from pellucid.model import Recorder, Transformer
from pellucid.model.weights import load_state
from pellucid.reference import transformer as reference
from pellucid.reference.tap import TensorRecorder

N_HEADS, D_MODEL, D_FF = 3, 12, 20


def side(prefix, at, norms):
    """The rows of torch's encoder (prefix "encoder") or decoder: `norms` are its norm1, norm2, ..."""
    layer, block = f"{prefix}.layers.{{i}}", f"{at}blocks.{{i}}"

    def attention(theirs, ours):
        fused = tuple(f"{block}.{ours}.{part}" for part in ("query", "key", "value"))
        return TensorRow(f"{layer}.{theirs}.in_proj", fused), TensorRow(
            f"{layer}.{theirs}.out_proj", f"{block}.{ours}.out"
        )

    return (
        *attention("self_attn", "attn"),
        *(attention("multihead_attn", "cross") if prefix == "decoder" else ()),
        TensorRow(f"{layer}.linear1", f"{block}.mlp.up.0"),
        TensorRow(f"{layer}.linear2", f"{block}.mlp.down"),
        *(TensorRow(f"{layer}.norm{n + 1}", f"{block}.{norm}") for n, norm in enumerate(norms)),
        TensorRow(f"{prefix}.norm", f"{at}final_norm"),
    )


TORCH = Family(
    name="torch",
    model_class="Transformer",
    prefix="",
    fields=(ConfigField("architecture", "encoder", None),),
    rows=(
        *side("encoder", "encoder.", ["norm_1", "norm_2"]),
        *side("decoder", "", ["norm_1", "norm_cross", "norm_2"]),
        TensorRow("source_embed", "encoder.embed.token"),
        TensorRow("embed", "embed.token"),
        TensorRow("unembed", "unembed"),
    ),
    # MultiheadAttention names its fused projection without a dot
    renames={"in_proj_weight": "in_proj.weight", "in_proj_bias": "in_proj.bias"},
)


class Theirs(nn.Module):
    """nn.Transformer between an embedding for each side and a readout."""

    def __init__(self, block, activation, n_encoder=2, n_decoder=3):
        super().__init__()
        self.inner = nn.Transformer(
            D_MODEL, N_HEADS, n_encoder, n_decoder, D_FF, 0.0, activation, batch_first=True, norm_first=block == "pre"
        )
        self.source_embed, self.embed = nn.Embedding(11, D_MODEL), nn.Embedding(13, D_MODEL)
        self.unembed = nn.Linear(D_MODEL, 13, bias=False)

    def forward(self, source, tokens, source_kept):
        n = tokens.size(1)
        hidden = ~torch.ones(n, n, dtype=torch.bool).tril()
        options = {"src_key_padding_mask": ~source_kept, "memory_key_padding_mask": ~source_kept}
        x = self.inner(self.source_embed(source), self.embed(tokens), tgt_mask=hidden, **options)
        return x, self.unembed(x)

    def state_dict(self):
        return {name.removeprefix("inner."): tensor for name, tensor in super().state_dict().items()}


def same_in_our_words(block, activation):
    common = {
        "d_model": D_MODEL,
        "mlp": MLP(d_ff=D_FF, activation=activation),
        "positions": Positions(kind="none"),
        "norm": Norm(eps=1e-5),
        "block": block,
    }
    mask = Attention(n_heads=N_HEADS, mask="bidirectional")
    encoder = Architecture(n_vocab=11, n_ctx=9, n_layers=2, attention=mask, **common)
    causal = Attention(n_heads=N_HEADS)
    return Architecture(n_vocab=13, n_ctx=7, n_layers=3, attention=causal, unembed="untied", encoder=encoder, **common)


@pytest.mark.item("S0-ref", "S4-encdec-a", "X-ENCDEC")
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("block", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_and_decoder(block, activation, monkeypatch):
    theirs, a = perturb(Theirs(block, activation)), same_in_our_words(block, activation)
    network = Transformer(a).double().eval()
    monkeypatch.setattr("pellucid.hub.families.architecture_of", lambda config, family: a)
    load_state(network, to_ours(theirs.state_dict(), {}, TORCH))
    assert a.encoder is not None
    source, tokens = draw(a.encoder), draw(a, seed=1)
    kept = torch.arange(9) < torch.tensor([9, 6, 1])[:, None]
    # outside eval's fast path, which computes the padded rows as zero
    with torch.enable_grad():
        x, logits = theirs(source, tokens, kept)

    recorder, tap = Recorder(["final_norm", "encoder.final_norm"]), TensorRecorder()
    mask, source_mask = kept[:, None, :].expand(-1, 9, -1), kept[:, None, :].expand(-1, 7, -1)
    encoded = network.encode(source, mask, tap=recorder)
    ours = network(tokens, source=encoded, source_mask=source_mask, tap=recorder)
    assert farthest(recorder.values["final_norm"], x) <= TOLERANCE
    assert farthest(ours, logits) <= TOLERANCE

    weights = numpy_weights(network)
    encoded = reference.encode(a, weights, source.numpy(), mask=mask.numpy(), tap=tap)
    slow = reference.forward(a, weights, tokens.numpy(), source=encoded, source_mask=source_mask.numpy(), tap=tap)
    assert farthest(torch.from_numpy(tap.values["final_norm"]), x) <= TOLERANCE
    assert farthest(torch.from_numpy(slow), logits) <= TOLERANCE
