"""Draw an architecture as the computation it performs: the residual stream from tokens to logits, and what is added to
it.
"""

import html
from dataclasses import dataclass, field

from pellucid.architecture import Architecture

WIDTH, STREAM, LEFT, RIGHT = 372.0, 34.0, 76.0, 352.0
#: pixels of a line of text and between two boxes
TEXT, GAP = 15.0, 16.0

MASKS = {
    "causal": "reads what came before",
    "bidirectional": "reads both sides",
    "prefix": "reads the prefix both ways",
}
NORMS = {"layer": "layer norm", "rms": "RMS norm"}


@dataclass
class Picture:
    """SVG elements from top to bottom; `y` is the top of the next one."""

    y: float = 6.0
    parts: list[str] = field(default_factory=list)
    #: where the encoder's output leaves its box
    source: float = 0.0

    def box(self, title: str, *lines: str, kind: str = "box", left: float = LEFT) -> tuple[float, float]:
        """Draw a box with a title and lines of text. Returns its upper and lower edge."""
        top, height = self.y, 12 + TEXT * (1 + len(lines))
        self.parts.append(
            f'<rect class="{kind}" x="{left}" y="{top:.1f}" width="{RIGHT - left}" height="{height:.1f}" rx="5"/>'
        )
        for i, line in enumerate((title, *lines)):
            weight = "title" if i == 0 else "say"
            self.parts.append(
                f'<text class="{weight}" x="{left + 10}" y="{top + 17 + TEXT * i:.1f}">{html.escape(line)}</text>'
            )
        self.y = top + height + GAP
        return top, top + height

    def on_stream(self, *lines: str) -> None:
        """Draw a box that the stream passes through."""
        _, bottom = self.box(lines[0], *lines[1:], kind="through", left=STREAM - 26)
        self.parts.insert(0, f'<line class="stream" x1="{STREAM}" x2="{STREAM}" y1="{bottom:.1f}" y2="{self.y:.1f}"/>')

    def branch(self, title: str, *lines: str) -> None:
        """Draw a box that reads from the stream and adds its output to it."""
        begin = self.y
        top, bottom = self.box(title, *lines)
        leave, add = top + 10, bottom - 8
        self.parts.append(
            f'<path class="arrow" d="M {STREAM} {leave:.1f} H {LEFT - 3}"/>'
            f'<path class="arrow" d="M {LEFT} {add:.1f} H {STREAM + 11}"/>'
            f'<circle class="add" cx="{STREAM}" cy="{add:.1f}" r="8"/>'
            f'<path class="plus" d="M {STREAM - 4} {add:.1f} h 8 M {STREAM} {add - 4:.1f} v 8"/>'
        )
        self.parts.insert(0, f'<line class="stream" x1="{STREAM}" x2="{STREAM}" y1="{begin:.1f}" y2="{self.y:.1f}"/>')

    def from_source(self, bottom: float) -> None:
        """Draw an arrow from the encoder's output along the right edge into the box that ends at `bottom`."""
        x, y = WIDTH - 9, bottom - 12
        self.parts.append(f'<path class="arrow" d="M {RIGHT} {self.source:.1f} H {x} V {y:.1f} H {RIGHT + 3}"/>')

    def svg(self, said: str) -> str:
        """The picture as SVG text."""
        arrow = (
            '<defs><marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" '
            'orient="auto">'
            '<path class="tip" d="M0 0 L6 3 L0 6 z"/></marker></defs>'
        )
        return (
            f'<svg class="drawing" viewBox="0 0 {WIDTH:g} {self.y:.0f}" role="img" '
            f'aria-label="{html.escape(said, quote=True)}">'
            f"{arrow}{''.join(self.parts)}</svg>"
        )


def draw_architecture(a: Architecture) -> str:
    """An SVG of the architecture, with its encoder first if there is one."""
    picture = Picture()
    if a.encoder is not None:
        _stack(picture, a.encoder, "source tokens", "encoder ")
        top, bottom = picture.box("the encoder's output", "read by every block below", kind="through", left=STREAM - 26)
        picture.source = (top + bottom) / 2
        picture.y += 6
    _stack(picture, a, "tokens", "")
    _readout(picture, a)
    return picture.svg(f"the computation: embedding, {a.n_layers} blocks, unembedding")


def _stack(picture: Picture, a: Architecture, tokens: str, of: str) -> None:
    positions = {
        "none": "nothing says where a token stands",
        "learned": f"+ a learned vector for each of {a.n_ctx:,} positions",
        "sinusoidal": "+ sinusoids of the position",
        "rotary": "positions enter in attention: rotary",
        "alibi": "positions enter in attention: ALiBi",
        "relative": "positions enter in attention: relative",
    }[a.positions.kind]
    grams = ", ".join(str(n) for n in a.ngrams)
    of_sum = a.embed_projection == "sum"
    projected = f", and a matrix to {a.d_model:,}" if a.d_embed and not of_sum else ""
    lines = [f"{tokens} to vectors of {a.embed_width:,}, {a.n_vocab:,} rows{projected}", positions]
    lines += [f"+ n-grams of {grams} tokens, {a.ngram_rows:,} rows each"] if a.ngrams else []
    lines += [f"+ a vector for each of {a.n_segments} kinds of segment"] if a.n_segments else []
    factor = {"1": "", "sqrt(d_model)": "√d_model", "embed_scale_value": f"{a.embed_scale_value:g}"}[a.embed_scale]
    times_embedding = f" × {factor}" if factor else ""
    picture.on_stream(f"{of}embedding" + times_embedding, *lines)
    if a.embed_norm == "norm":
        picture.on_stream(NORMS.get(a.norm.kind, "norm"))
    if of_sum:
        picture.on_stream("projection", f"a matrix from {a.d_embed:,} to {a.d_model:,}, and a bias")
    begin = picture.y - GAP / 2
    _block(picture, a)
    times = f"{a.n_layers} blocks, one after another" if a.n_layers != 1 else "1 block"
    end = picture.y - GAP / 2
    picture.parts.insert(
        0, f'<rect class="bracket" x="4" y="{begin:.1f}" width="{WIDTH - 8}" height="{end - begin + 18:.1f}" rx="8"/>'
    )
    picture.parts.append(f'<text class="times" x="{RIGHT}" y="{end + 12:.1f}" text-anchor="end">{times}</text>')
    picture.parts.insert(
        0, f'<line class="stream" x1="{STREAM}" x2="{STREAM}" y1="{end:.1f}" y2="{end + 18 + GAP:.1f}"/>'
    )
    picture.y = end + 18 + GAP
    if a.final_norm == "norm" and a.norm.kind != "none":
        picture.on_stream(NORMS[a.norm.kind])


def _block(picture: Picture, a: Architecture) -> None:
    """The sublayers of one block."""
    norm = NORMS.get(a.norm.kind, "")
    before = f"{norm}, then " if norm and a.block not in ("post", "inner") else ""
    behind = f", then {norm}" if norm and a.block in ("inner", "sandwich") else ""
    shared = f", {a.n_kv_heads} of keys and values" if a.n_kv_heads != a.n_heads else ""
    shown = MASKS[a.attention.mask] + _windows(a)
    unnormed = ["block 0 reads the stream without this norm"] if norm and a.first_norm == "none" else []
    heads = f"{a.n_heads} heads of {a.d_head}{shared}"
    picture.branch(f"{before}attention{behind}", heads, shown, *_attention(a), *unnormed)
    if a.block == "post" and norm:
        picture.on_stream(norm)
    if a.encoder is not None:
        cross = f"{before}cross-attention{behind}"
        picture.branch(cross, "queries of the stream,", "keys and values of the encoder's output")
        picture.from_source(picture.y - GAP)
        if a.block == "post" and norm:
            picture.on_stream(norm)
    beside = ["reads the stream as attention does, beside it"] if a.block in ("parallel", "shared") else []
    picture.branch(f"{before}MLP{behind}", *_mlp(a), *beside)
    if a.block == "post" and norm:
        picture.on_stream(norm)


def _attention(a: Architecture) -> list[str]:
    """What a head computes, and how its queries and keys are changed first."""
    d, shared = f"{a.d_head:,}", a.d_model // a.n_heads
    scale = {"1/sqrt(d_head)": f" / √{d}", "1/d_head": f" / {d}", "1": "", "1/sqrt(d_model/n_heads)": f" / √{shared:,}"}
    scale["scale_value"] = f" × {a.attention.scale_value:g}"
    score = f"q·k{scale[a.attention.scale]}"
    if a.attention.score_cap:
        cap = f"{a.attention.score_cap:g}"
        score = f"{cap} tanh({score} / {cap})"
    score += {"alibi": " - slope × distance", "relative": " + b[distance]"}.get(a.positions.kind, "")
    normed = {"none": [], "layer": ["layer norm of q and k"], "layer_own": ["layer norm of q and k"]}
    first = normed.get(a.attention.qk_norm, ["q and k over their RMS"])
    part = f" in {a.d_rotary} of {d}" if a.d_rotary < a.d_head else ""
    part += f", but for every {a.positions.every}th layer" if "every" in a.position_fields else ""
    first += [f"rotated by position{part}"] if a.rotates_somewhere else []
    return [f"softmax({score}) v", *([", ".join(first)] if first else [])]


def _mlp(a: Architecture) -> list[str]:
    """Sizes, and the formula for a row x."""
    if not a.mlp.n_hidden:
        return [f"{a.d_model:,} to {a.d_model:,}, no hidden layer", "x W_out"]
    hidden = " to ".join([f"{a.d_ff:,}"] * a.mlp.n_hidden)
    f, sizes = _activation(a), f"{a.d_model:,} to {hidden} to {a.d_model:,}"
    mixture = _mixture(a)
    if a.mlp.form == "gated":
        return [f"{sizes}, gated", f"({f}(x W_gate) × x W_up) W_out", *mixture]
    if a.mlp.n_hidden == 1:
        return [sizes, f"{f}(x W_in) W_out", *mixture]
    inside = "f(f(x W_1) W_2)" if a.mlp.n_hidden == 2 else f"f(... f(x W_1) ... W_{a.mlp.n_hidden})"
    return [sizes, f"{inside} W_out, f = {f}"]


def _mixture(a: Architecture) -> list[str]:
    """How many experts there are, how many a row uses, and the shared one."""
    if not a.mlp.experts:
        return []
    weights = "softmax over these" if a.mlp.router_softmax == "chosen" else "softmax over all"
    lines = [
        f"{a.mlp.experts:,} experts, of which each position uses {a.mlp.experts_per_token:,}",
        f"weights: {weights}",
    ]
    gated = ", times a sigmoid of x" if a.mlp.shared_gate == "sigmoid" else ""
    return [*lines, f"a shared expert of width {a.mlp.shared_d_ff:,}{gated}"] if a.mlp.shared_d_ff else lines


def _windows(a: Architecture) -> str:
    named = [f"{n:,}" if n else "all" for n in a.attention.windows]
    return "" if named == ["all"] else f", windows {', '.join(named)} in turn"


def _activation(a: Architecture) -> str:
    names = {"gelu": "GELU", "gelu_tanh": "tanh-GELU", "relu": "ReLU", "relu2": "squared ReLU", "silu": "SiLU"}
    names["quick_gelu"] = "sigmoid-GELU"
    return names.get(a.mlp.activation, a.mlp.activation)


def _readout(picture: Picture, a: Architecture) -> None:
    if a.readout == "none":
        picture.parts.append(f'<text class="title" x="{STREAM + 14}" y="{picture.y + 2:.1f}">hidden states</text>')
        picture.y += 14
        return
    tied = "the embedding's matrix again" if a.unembed == "tied" else "a matrix of its own"
    more = ["a dense layer and a norm first"] if a.readout == "bert" else []
    if a.logit_scale != "1":
        more += ["divided by √d_model" if a.logit_scale == "1/sqrt(d_model)" else f"times {a.logit_scale_value:g}"]
    more += [f"{a.logit_cap:g} tanh(logit / {a.logit_cap:g}) in place of each logit"] if a.logit_cap else []
    first = f"a matrix to {a.d_embed:,}, then " if a.d_embed and a.readout != "bert" else ""
    picture.on_stream("unembedding", f"{first}{tied}, {a.embed_width:,} to {a.n_vocab:,}", *more)
    what = "logits of the token that stands here" if a.attention.mask == "bidirectional" else "logits of the next token"
    picture.parts.append(f'<text class="title" x="{STREAM + 14}" y="{picture.y + 2:.1f}">{what}</text>')
    picture.y += 14


def equations(a: Architecture, encodes: bool = False) -> list[str]:
    """The computation in formulas, one on each line, where x has a row for each token; an encoder has no logits."""
    norm = a.norm.kind != "none"

    def normed(x: str) -> str:
        return f"norm({x})" if norm else x

    factor = {"1": "", "sqrt(d_model)": "√d_model ", "embed_scale_value": f"{a.embed_scale_value:g} "}[a.embed_scale]
    of_sum = a.embed_projection == "sum"
    start = f"x = {factor}W_E[token]{' Pᵀ' if a.d_embed and not of_sum else ''}"
    start += {"learned": " + W_P[position]", "sinusoidal": " + P[position]"}.get(a.positions.kind, "")
    start += " + W_S[segment]" if a.n_segments else ""
    c = "" if a.residual_scale == 1 else f"{a.residual_scale:g} "
    parts = ["attention", *(["attention_to_source"] if a.encoder is not None else []), "MLP"]
    if a.block == "post":
        block = [f"x = {normed(f'x + {c}{part}(x)')}" for part in parts]
    elif a.block in ("parallel", "shared"):
        block = ["x = x + " + " + ".join(f"{c}{part}({normed('x')})" for part in parts)]
    else:
        inner = "x" if a.block == "inner" else normed("x")
        outer = normed if a.block in ("inner", "sandwich") else str
        block = [f"x = x + {c}{outer(f'{part}({inner})')}" for part in parts]
    if a.first_norm == "none" and norm:
        block.append(f"(in the first, {'both read' if a.block == 'shared' else 'attention reads'} x, not norm(x))")
    grams = ", ".join(str(n) for n in a.ngrams)
    lines = [start, *([f"x = x + sum of W_n[last n tokens], n = {grams}"] if a.ngrams else [])]
    lines += [f"x = {normed('x')}"] if a.embed_norm == "norm" else []
    lines += ["x = x Pᵀ + b"] if of_sum else []
    lines += [f"{a.n_layers} times:" if a.n_layers != 1 else "once:", *(f"    {line}" for line in block)]
    last = normed("x") if a.final_norm == "norm" else "x"
    if encodes or a.readout == "none":
        return [*lines, f"{'source' if encodes else 'hidden'} = {last}"]
    last = f"norm(f({last} W))" if a.readout == "bert" else f"{last} Qᵀ" if a.d_embed else last
    factors = {"1": "", "1/sqrt(d_model)": " / √d_model", "logit_scale_value": f" {a.logit_scale_value:g}"}
    scaled = factors[a.logit_scale]
    biased = a.readout != "linear" and a.readout_bias in ("all", "logits")
    return [
        *lines,
        f"logits = {last} {'W_E' if a.unembed == 'tied' else 'W_U'}ᵀ{scaled}{' + b' if biased else ''}",
    ]
