"""A block adds to the residual stream what attention reads, then what the MLP computes."""

from dataclasses import dataclass

from torch import nn

from pellucid.architecture import Architecture
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.cache import NO_CACHE, NoCache
from pellucid.model.dropout import SampledDropout
from pellucid.model.mlp import make_mlp
from pellucid.model.norm import Identity, make_norm
from pellucid.model.shapes import Encoded, Rotation, SourceVisible, Stream, Visible
from pellucid.model.tap import OFF, Tap


@dataclass(frozen=True)
class BlockInputs:
    """What all blocks of one call read besides the stream: rotations, a mask, an encoder's output and its mask."""

    rotation: Rotation | None = None
    visible: Visible | None = None
    source: Encoded | None = None
    source_visible: SourceVisible | None = None


class Times(nn.Module):
    """c x"""

    def __init__(self, c: float):
        super().__init__()
        self.c = c

    def forward(self, x: Stream) -> Stream:
        return self.c * x


def block_norm(a: Architecture, layer: int, name: str) -> nn.Module:
    """The norm of this name where block `layer` has it."""
    return make_norm(a) if name in a.norms_of(layer) else Identity()


class PreBlock(nn.Module):
    """x += attn(norm_1(x));  x += mlp(norm_2(x))   (Goon; Dobriban; Becker-Kahn (4.1), (4.2) without norm)

    inner: x += norm_1_out(attn(x)) and x += norm_2_out(mlp(x)) (Liu et al. 2021, Swin v2; OLMo 2), sandwich: with all
    four (Ding et al. 2021). A norm that the word does not name leaves its vector unchanged, and so does norm_1 of block
    0 where first_norm = none (Warner et al. 2024). With residual_scale = c every block adds c times what its sublayers
    compute (IBM 2024, Granite 3.0).
    """

    def __init__(self, a: Architecture, layer: int):
        super().__init__()
        self.norm_1 = block_norm(a, layer, "norm_1")
        self.attn = MultiHeadAttention(a, layer)
        self.norm_1_out = block_norm(a, layer, "norm_1_out")
        self.norm_2 = block_norm(a, layer, "norm_2")
        self.mlp = make_mlp(a)
        self.norm_2_out = block_norm(a, layer, "norm_2_out")
        self.drop_attn, self.drop_mlp = SampledDropout(a.dropout.attn_out), SampledDropout(a.dropout.mlp_out)
        self.scaled = Identity() if a.residual_scale == 1 else Times(a.residual_scale)

    def forward(self, x: Stream, inputs: BlockInputs, cache: NoCache = NO_CACHE, tap: Tap = OFF) -> Stream:
        x = tap("resid_pre", x)
        x = tap("resid_mid", x + self.attend(self.norm_1(x, tap, "norm_1"), inputs, cache, tap))
        return tap("resid_post", x + self.feed_forward(self.norm_2(x, tap, "norm_2"), tap))

    def attend(self, x: Stream, inputs: BlockInputs, cache: NoCache, tap: Tap) -> Stream:
        """What attention adds to the stream."""
        out = self.attn(x, rotation=inputs.rotation, visible=inputs.visible, cache=cache, tap=tap.at("attn"))
        return tap("attn_out", self.drop_attn(self.scaled(self.norm_1_out(out, tap, "norm_1_out"))))

    def feed_forward(self, x: Stream, tap: Tap) -> Stream:
        """What the MLP adds to the stream."""
        out = self.norm_2_out(self.mlp(x, tap.at("mlp")), tap, "norm_2_out")
        return tap("mlp_out", self.drop_mlp(self.scaled(out)))


class PostBlock(PreBlock):
    """x = norm_1(x + attn(x));  x = norm_2(x + mlp(x))   (AP and MF, slide 8; Vaswani et al. 2017)"""

    def forward(self, x: Stream, inputs: BlockInputs, cache: NoCache = NO_CACHE, tap: Tap = OFF) -> Stream:
        x = tap("resid_pre", x)
        x = self.norm_1(tap("resid_mid", x + self.attend(x, inputs, cache, tap)), tap, "norm_1")
        return tap("resid_post", self.norm_2(x + self.feed_forward(x, tap), tap, "norm_2"))


class ParallelBlock(PreBlock):
    """x += attn(norm_1(x)) + mlp(norm_2(x))   (Becker-Kahn, Remark 4.1, counting X once)"""

    def forward(self, x: Stream, inputs: BlockInputs, cache: NoCache = NO_CACHE, tap: Tap = OFF) -> Stream:
        x = tap("resid_pre", x)
        read = self.attend(self.norm_1(x, tap, "norm_1"), inputs, cache, tap)
        return tap("resid_post", x + read + self.feed_forward(self.norm_2(x, tap, "norm_2"), tap))


class SharedBlock(PreBlock):
    """x += attn(norm_1(x)) + mlp(norm_1(x))   (Wang and Komatsuzaki 2021, GPT-J)"""

    def forward(self, x: Stream, inputs: BlockInputs, cache: NoCache = NO_CACHE, tap: Tap = OFF) -> Stream:
        x = tap("resid_pre", x)
        y = self.norm_1(x, tap, "norm_1")
        return tap("resid_post", x + self.attend(y, inputs, cache, tap) + self.feed_forward(y, tap))


class PreCrossBlock(PreBlock):
    """x += attn(norm_1(x));  x += cross(norm_cross(x), source);  x += mlp(norm_2(x))"""

    def __init__(self, a: Architecture, layer: int):
        super().__init__(a, layer)
        self.norm_cross = make_norm(a)
        self.cross = MultiHeadAttention(a, layer, cross=True)
        self.drop_cross = SampledDropout(a.dropout.attn_out)

    def forward(self, x: Stream, inputs: BlockInputs, cache: NoCache = NO_CACHE, tap: Tap = OFF) -> Stream:
        x = tap("resid_pre", x)
        x = tap("resid_mid", x + self.attend(self.norm_1(x, tap, "norm_1"), inputs, cache, tap))
        x = tap("resid_cross", x + self.cross_attend(self.norm_cross(x, tap, "norm_cross"), inputs, cache, tap))
        return tap("resid_post", x + self.feed_forward(self.norm_2(x, tap, "norm_2"), tap))

    def cross_attend(self, x: Stream, inputs: BlockInputs, cache: NoCache, tap: Tap) -> Stream:
        """What cross-attention adds to the stream."""
        visible = inputs.source_visible
        out = self.cross(x, inputs.source, visible=visible, cache=cache.of_source(), tap=tap.at("cross"))
        return tap("cross_out", self.drop_cross(self.scaled(out)))


class PostCrossBlock(PreCrossBlock):
    """x = norm_1(x + attn(x));  x = norm_cross(x + cross(x, source));  x = norm_2(x + mlp(x))   (Vaswani et al.)"""

    def forward(self, x: Stream, inputs: BlockInputs, cache: NoCache = NO_CACHE, tap: Tap = OFF) -> Stream:
        x = tap("resid_pre", x)
        x = self.norm_1(tap("resid_mid", x + self.attend(x, inputs, cache, tap)), tap, "norm_1")
        x = self.norm_cross(tap("resid_cross", x + self.cross_attend(x, inputs, cache, tap)), tap, "norm_cross")
        return tap("resid_post", self.norm_2(x + self.feed_forward(x, tap), tap, "norm_2"))


BLOCK = {"pre": PreBlock, "post": PostBlock, "parallel": ParallelBlock, "shared": SharedBlock}
BLOCK |= {"inner": PreBlock, "sandwich": PreBlock}
CROSS_BLOCK = {"pre": PreCrossBlock, "post": PostCrossBlock}
