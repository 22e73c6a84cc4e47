"""The steps of a model's computation, in order: for each tensor its title and its equation.

They follow from the architecture alone. What an architecture lacks has no step, and what it does differently (another
block, norm, positional scheme or MLP) has its own equation.
"""

from collections.abc import Callable, Generator, Iterator

from pellucid.architecture import Architecture
from pellucid.look.step import Step, linear_equation
from pellucid.look.step_names import SYMBOLS, TITLES, expert_symbol

#: the product with a norm's factor, by norm.gain
GAINED = {"g": " \\odot \\gamma", "1+g": " \\odot (1 + \\gamma)", "1": ""}
ACTIVATIONS = {
    "gelu": "\\text{gelu}",
    "gelu_tanh": "\\text{gelu}",
    "relu": "\\text{relu}",
    "relu2": "\\text{relu}^2",
    "silu": "\\text{silu}",
    "quick_gelu": "\\text{gelu}",
    "tanh": "\\tanh",
}

#: what each positional scheme adds to the stream or to a score
POSITION_TEX: dict[str, Callable[[Architecture], str]] = {
    "learned": lambda a: "W_P [ i ]",
    "sinusoidal": lambda a: (
        "(\\sin(i w_k), \\cos(i w_k))_k, "
        f"\\; w_k = {a.positions.base:g}^{{-2k/{'e' if a.embed_projection == 'sum' else 'm'}}}"
    ),
    "alibi": lambda a: " - s_h (i - j)",
    "relative": lambda a: " + b_h [ r(i - j) ]",
}


def model_steps(a: Architecture) -> list[Step]:
    """Every step of a model: the encoder's, where there is one, then the others."""
    steps = [] if a.encoder is None else list(StepWriter(a.encoder, "encoder.", a).steps())
    return steps + list(StepWriter(a, "", a).steps())


class StepWriter:
    """Writes the steps of one stack of blocks. `scope` is "" or "encoder.", `outer` the whole model's architecture."""

    def __init__(self, a: Architecture, scope: str, outer: Architecture):
        self.a, self.scope, self.outer = a, scope, outer
        self.normed = a.norm.kind != "none"
        self.part = "embed"

    # Pieces -----------------------------------------------------------------------------------

    def symbol(self, name: str) -> str:
        """The live symbol of a tensor."""
        return f"\\t{{{self.scope}{name}}}{{{expert_symbol(name) or SYMBOLS[last_word(name)]}}}"

    def step(self, name: str, group: str, right: str, title: str = "") -> Step:
        """The step of a tensor whose symbol equals `right`."""
        title = title or TITLES[last_word(name)]
        return Step(self.scope + name, self.scope + self.part, group, title, f"{self.symbol(name)} = {right}")

    def norm(self, name: str, right: str) -> Iterator[Step]:
        """The three steps of a norm that reads `right`."""
        layer, where, full = self.a.norm.kind == "layer", self.scope + self.part, self.scope + name
        letter = "\\sigma_i" if layer else "\\rho_i"
        scale = f"\\t{{{full}.scale}}{{{letter}}}"
        normalized = f"\\t{{{full}.normalized}}{{\\hat{{x}}_i}}"
        centred = f"{right} - \\mu_i" if layer else right
        mean_square = f"\\frac{{1}}{{m}} {{\\lVert {centred} \\rVert}}^2"
        root = f"\\sqrt{{{mean_square}}} + \\epsilon"
        if self.a.norm.eps_at == "inside":
            root = f"\\sqrt{{{mean_square} + \\epsilon}}"
        yield Step(f"{full}.scale", where, "norm", "The size of the vector", f"{scale} = {root}")
        divided = f"{normalized} = \\frac{{{centred}}}{{{scale}}}"
        yield Step(f"{full}.normalized", where, "norm", "The vector, divided by its size", divided)
        beta = " + \\beta" if layer and self.a.norm.bias == "all" else ""
        factors = "no coordinate has a factor" if self.a.norm.gain == "1" else "each coordinate with its own factor"
        title = f"{'Layer norm' if layer else 'RMS norm'}: {factors}"
        yield self.step(name, "norm", f"{normalized}{GAINED[self.a.norm.gain]}{beta}", title)

    # The stack --------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """The embedding, the blocks, and the readout."""
        stream = yield from self.embedding()
        for layer in range(self.a.n_layers):
            self.part = f"blocks.{layer}"
            stream = yield from self.block(layer, stream)
        self.part = "output"
        yield from self.readout(stream)

    def embedding(self) -> Generator[Step, None, str]:
        """The steps before the first block; returns the stream."""
        a = self.a
        factors = {"1": "", "sqrt(d_model)": "\\sqrt{m} ", "embed_scale_value": f"{a.embed_scale_value:g} "}
        of_tokens, of_sum = a.d_embed > 0 and a.embed_projection == "tokens", a.embed_projection == "sum"
        yield self.step("embed", "embed", f"{factors[a.embed_scale]}W_E [ t_i ]{' P^T' if of_tokens else ''}")
        parts = ["embed"]
        if a.adds_positions:
            yield self.step("pos_embed", "embed", POSITION_TEX[a.positions.kind](a))
            parts.append("pos_embed")
        if a.n_segments:
            yield self.step("seg_embed", "embed", "W_S [ s_i ]")
            parts.append("seg_embed")
        if a.ngrams:
            sums = " + ".join(f"W_{n} [ r(t_{{i-{n - 1}}} \\dots t_i) ]" for n in a.ngrams)
            yield self.step("ngram_embed", "embed", sums)
            parts.append("ngram_embed")
        stream = " + ".join(map(self.symbol, parts))
        if a.embed_norm == "norm" and self.normed:
            yield from self.norm("embed_norm", stream)
            stream, parts = self.symbol("embed_norm"), ["embed_norm"]
        if of_sum:
            summed = stream if len(parts) == 1 else f"({stream})"
            yield self.step("embed_projected", "embed", f"{summed} P^T + b_P")
            stream = self.symbol("embed_projected")
        return stream

    def block(self, layer: int, stream: str) -> Generator[Step, None, str]:
        """The steps of one block that reads `stream`; returns the stream behind it."""
        a, at, kind = self.a, f"blocks.{layer}.", self.a.block
        pre, mid, cross, post = (at + name for name in ("resid_pre", "resid_mid", "resid_cross", "resid_post"))
        attn_out, cross_out, mlp_out = at + "attn_out", at + "cross_out", at + "mlp_out"

        def added(name: str, *terms: str) -> Step:
            return self.step(name, "stream", " + ".join(map(self.symbol, terms)))

        def norm(name: str, reads: str) -> Generator[Step, None, str]:
            """The steps of a norm of a tensor; returns the tensor that is read next."""
            if not self.normed:
                return reads
            yield from self.norm(at + name, self.symbol(reads))
            return at + name

        yield self.step(pre, "stream", stream)
        reads = pre
        if kind in ("pre", "parallel", "shared", "sandwich") and "norm_1" in a.norms_of(layer):
            reads = yield from norm("norm_1", pre)
        yield from self.attention(layer, "attn", reads)
        yield from self.sublayer_out(attn_out, "attention", "norm_1_out", self.head_sum(at + "attn"))
        if kind in ("parallel", "shared"):
            if kind == "parallel":
                reads = yield from norm("norm_2", pre)
            yield from self.mlp(layer, reads)
            yield added(post, pre, attn_out, mlp_out)
            return self.symbol(post)
        yield added(mid, pre, attn_out)
        last = mid
        if kind == "post":
            last = yield from norm("norm_1", mid)
        if a.encoder is not None:
            reads = last
            if kind == "pre":
                reads = yield from norm("norm_cross", mid)
            yield from self.attention(layer, "cross", reads)
            yield self.step(cross_out, "cross", self.scaled(self.head_sum(at + "cross")))
            yield added(cross, last, cross_out)
            last = cross
            if kind == "post":
                last = yield from norm("norm_cross", cross)
        reads = last
        if kind in ("pre", "sandwich"):
            reads = yield from norm("norm_2", last)
        yield from self.mlp(layer, reads)
        if kind == "post" and self.normed:
            yield from self.norm(at + "norm_2", f"{self.symbol(last)} + {self.symbol(mlp_out)}")
            yield added(post, at + "norm_2")
        else:
            yield added(post, last, mlp_out)
        return self.symbol(post)

    def sublayer_out(self, name: str, group: str, norm: str, right: str) -> Iterator[Step]:
        """What attention or an MLP writes, behind its norm where there is one."""
        if self.a.block in ("inner", "sandwich") and self.normed:
            norm = f"blocks.{name.split('.')[1]}.{norm}"
            yield from self.norm(norm, right)
            right = self.symbol(norm)
        yield self.step(name, group, self.scaled(right))

    def scaled(self, right: str) -> str:
        """What a sublayer computes, times residual_scale."""
        c = self.a.residual_scale
        return right if c == 1 else f"{c:g} ({right})"

    # Attention --------------------------------------------------------------------------------

    def head_sum(self, at: str) -> str:
        """The sum over the heads."""
        return f"\\sum_h {self.symbol(at + '.result')}{' + b_O' if self.a.attention.bias in ('out', 'all') else ''}"

    def attention(self, layer: int, kind: str, reads: str) -> Iterator[Step]:
        """The steps of attention to this stream (attn) or to the source (cross)."""
        a, at = self.a, f"blocks.{layer}.{kind}."
        group = "attention" if kind == "attn" else "cross"
        source = self.symbol(reads)
        if kind == "cross":
            assert self.outer.encoder is not None
            source = StepWriter(self.outer.encoder, "encoder.", self.outer).output()
        for name, matrix in zip("qkv", "QKV", strict=True):
            # keys and values are those of position j
            x = self.symbol(reads) if name == "q" else source.replace("_i", "_j")
            bias = f" + b_{matrix}^h" if a.attention.bias in ("qkv", "all") else ""
            yield self.step(at + name, group, f"{x} {{W_{matrix}^h}}^T{bias}")
        turned = kind == "attn" and a.rotates(layer)
        if turned:
            for name, letter in (("q", "i"), ("k", "j")):
                yield self.step(at + f"rot_{name}", group, f"R_{letter} {self.normed_heads(at + name)}")
        yield self.step(at + "scores", group, self.scores(layer, kind, turned))
        s = self.symbol(at + "scores")
        yield self.step(at + "pattern", group, f"\\frac{{\\exp {s}}}{{\\sum_j \\exp {s}}}")
        yield self.step(at + "z", group, f"\\sum_j {self.symbol(at + 'pattern')} {self.symbol(at + 'v')}")
        yield self.step(at + "result", group, f"{self.symbol(at + 'z')} {{W_O^h}}^T")

    def normed_heads(self, name: str) -> str:
        """Queries or keys behind their norm."""
        a, x = self.a, self.symbol(name)
        if a.attention.qk_norm == "none":
            return x
        if a.attention.qk_norm.startswith("rms"):
            return f"\\frac{{{x}}}{{\\text{{rms}}}}{GAINED[a.norm.gain]}"
        beta = " + \\beta" if a.attention.qk_norm == "layer" and a.norm.bias == "all" else ""
        return f"(\\frac{{{x} - \\mu}}{{\\sigma}}{GAINED[a.norm.gain]}{beta})"

    def scores(self, layer: int, kind: str, turned: bool) -> str:
        """The scores of an attention, with the rule of what may be read."""
        a, at = self.a, f"blocks.{layer}.{kind}."
        q, k = (self.symbol(at + f"rot_{name}" if turned else at + name) for name in "qk")
        if a.attention.qk_norm != "none" and not turned:
            q, k = f"\\text{{norm}}({q})", f"\\text{{norm}}({k})"
        scales = {
            "1/sqrt(d_head)": "\\frac{1}{\\sqrt{d}} ",
            "1/d_head": "\\frac{1}{d} ",
            "1": "",
            "1/sqrt(d_model/n_heads)": "\\frac{1}{\\sqrt{m/H}} ",
            "scale_value": f"{a.attention.scale_value:g} ",
        }
        right = f"{scales[a.attention.scale]}{q} \\cdot {k}"
        if cap := a.attention.score_cap:
            right = f"{cap:g} \\tanh({right} / {cap:g})"
        if kind == "cross":
            return right
        if a.biases_scores:
            right += POSITION_TEX[a.positions.kind](a)
        rules = [] if a.attention.mask == "bidirectional" else ["j \\le i"]
        if window := a.window(layer):
            rules.append(f"i - j < {window}")
        return ", \\; ".join([right, *rules])

    # MLP --------------------------------------------------------------------------------------

    def mlp(self, layer: int, reads: str) -> Iterator[Step]:
        """The hidden layers of an MLP, or of every expert, and what it writes."""
        at, biased = f"blocks.{layer}.mlp.", self.a.mlp.bias == "all"
        if self.a.mlp.experts:
            right = yield from self.mixture(at, reads)
        else:
            hidden = yield from self.hidden_layers(at, reads)
            right = linear_equation(self.symbol(hidden), "down", biased)
        yield from self.sublayer_out(f"blocks.{layer}.mlp_out", "mlp", "norm_2_out", right)

    def hidden_layers(self, at: str, reads: str) -> Generator[Step, None, str]:
        """The hidden layers of one MLP, whose tensors begin with `at`; returns the last one's name."""
        mlp, x = self.a.mlp, reads
        biased, activation = mlp.bias == "all", ACTIVATIONS[mlp.activation]
        for n in range(mlp.n_hidden):
            number = f".{n}" if mlp.n_hidden > 1 else ""
            gate, pre, post = at + "gate", at + f"pre{number}", at + f"post{number}"
            if mlp.form == "gated":
                yield self.step(gate, "mlp", linear_equation(self.symbol(x), "gate", biased))
            yield self.step(pre, "mlp", linear_equation(self.symbol(x), "up", biased))
            right = f"{activation}({self.symbol(pre)})"
            if mlp.form == "gated":
                right = f"{activation}({self.symbol(gate)}) \\odot {self.symbol(pre)}"
            yield self.step(post, "mlp", right)
            x = post
        return x

    def mixture(self, at: str, reads: str) -> Generator[Step, None, str]:
        """The router, the weights of the experts, and what each expert writes; returns their sum."""
        mlp, x, biased = self.a.mlp, self.symbol(reads), self.a.mlp.bias == "all"
        yield self.step(at + "router", "mlp", f"{x} W_R^T")
        r, g = self.symbol(at + "router"), self.symbol(at + "expert_weights")
        chosen = f"\\text{{softmax}}_{{e \\in U}} {r}"
        of_all = f"[e \\in U] \\text{{softmax}}_e {r}"
        yield self.step(at + "expert_weights", "mlp", chosen if mlp.router_softmax == "chosen" else of_all)
        results = []
        for e in range(mlp.experts):
            hidden = yield from self.hidden_layers(f"{at}expert_{e}.", reads)
            results.append(f"{at}expert_{e}.result")
            right = f"{g}[{e}] ({linear_equation(self.symbol(hidden), 'down', biased)})"
            yield self.step(results[-1], "mlp", right, f"What expert {e} writes, times its weight")
        if mlp.shared_d_ff:
            hidden = yield from self.hidden_layers(f"{at}shared.", reads)
            results.append(f"{at}shared.result")
            right = linear_equation(self.symbol(hidden), "down", biased)
            if mlp.shared_gate == "sigmoid":
                right = f"\\sigma({x} w_s^T) ({right})"
            yield self.step(results[-1], "mlp", right, "What the shared expert writes")
        return " + ".join(map(self.symbol, results))

    # The readout ------------------------------------------------------------------------------

    def output(self) -> str:
        """The stack's last stream."""
        a = self.a
        if a.final_norm == "norm" and self.normed:
            return self.symbol("final_norm")
        return self.symbol(f"blocks.{a.n_layers - 1}.resid_post" if a.n_layers else "embed")

    def readout(self, stream: str) -> Iterator[Step]:
        """The final norm, the logits and the probabilities."""
        a = self.a
        if a.final_norm == "norm" and self.normed:
            yield from self.norm("final_norm", stream)
            stream = self.symbol("final_norm")
        if self.scope or a.readout == "none":
            return
        right = stream
        if a.readout == "bert":
            bias = " + b" if a.readout_bias in ("all", "dense") else ""
            right = f"{ACTIVATIONS[a.mlp.activation]}({right} W^T{bias})"
            right = f"\\text{{norm}}({right})" if self.normed else right
        elif a.d_embed:
            right = f"{right} Q^T"
        biased = a.readout in ("affine", "bert") and a.readout_bias in ("all", "logits")
        factors = {
            "1": "",
            "1/sqrt(d_model)": "\\frac{1}{\\sqrt{m}} ",
            "logit_scale_value": f"{a.unembed_scale:g} ",
        }
        right = f"{factors[a.logit_scale]}{right} {{W_U}}^T{' + b_U' if biased else ''}"
        if a.logit_cap:
            right = f"{a.logit_cap:g} \\tanh({right} / {a.logit_cap:g})"
        yield self.step("logits", "output", right)
        title = "The probabilities at the masked token" if a.attention.mask == "bidirectional" else ""
        sums = f"\\frac{{\\exp {self.symbol('logits')}}}{{\\sum_v \\exp l_{{iv}}}}"
        yield self.step("probs", "output", sums, title)


def last_word(name: str) -> str:
    """The last part of a tensor's name that is no number."""
    return next(part for part in reversed(name.split(".")) if not part.isdigit())
