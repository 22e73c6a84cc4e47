"""The steps of a model's computation, in order: for each tensor its title, equation, code, and place in the definition.

They follow from the architecture alone. What an architecture lacks has no step, and what it does differently (another
block, norm, positional scheme or MLP) has its own equation. `code` computes the tensor from the ones that the equation
names and from the weights, on whichever device they are, so that a test can compare every step with the trace.
"""

from collections.abc import Iterator

from pellucid.architecture import Architecture
from pellucid.look.mixture_steps import expert_symbol, mixture_steps, sum_of_experts
from pellucid.look.step import Definition, Step, linear_equation
from pellucid.look.step_names import SYMBOLS, TITLES

#: the product with a norm's factor, by norm.gain
GAINED = {"g": " \\odot \\gamma", "1+g": " \\odot (1 + \\gamma)", "1": ""}
NORM_PARTS = {"scale": "The size of the vector", "normalized": "The vector, divided by its size"}
BLOCK_FUNCTIONS = {kind: f"{kind}_block" for kind in ("pre", "post", "parallel", "shared", "inner", "sandwich")}
ACTIVATIONS = {
    "gelu": ("\\text{gelu}", "F.gelu({})"),
    "gelu_tanh": ("\\text{gelu}", 'F.gelu({}, approximate="tanh")'),
    "relu": ("\\text{relu}", "{}.relu()"),
    "relu2": ("\\text{relu}^2", "{}.relu().square()"),
    "silu": ("\\text{silu}", "F.silu({})"),
    "quick_gelu": ("\\text{gelu}", "{0} * (1.702 * {0}).sigmoid()"),
    "tanh": ("\\tanh", "{}.tanh()"),
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
        self.n = "trace.ids.size(1)" if not scope else "trace.inputs.source.tokens.size(1)"
        self.arch = "a.encoder" if scope else "a"

    # Pieces -----------------------------------------------------------------------------------

    def tensor(self, name: str) -> str:
        """A tensor in code."""
        return f'trace["{self.scope}{name}"]'

    def weight(self, name: str) -> str:
        """A weight in code."""
        return f'w["{self.scope}{name}"]'

    def symbol(self, name: str, at: str = "") -> str:
        """The live symbol of a tensor; `at` replaces its position index."""
        last = name.split(".")[-1]
        if last.isdigit():
            last = name.split(".")[-2]
        symbol = expert_symbol(name) or SYMBOLS[last]
        return f"\\t{{{self.scope}{name}}}{{{symbol}}}"

    def step(
        self, name: str, group: str, right: str, code: str, definition: tuple[str, str, str], title: str = ""
    ) -> Step:
        """The step of a tensor whose symbol equals `right`."""
        last = name.split(".")[-1]
        last = name.split(".")[-2] if last.isdigit() else last
        where = self.scope + self.part if self.part.startswith("blocks") else f"{self.scope}{self.part}"
        return Step(
            f"{self.scope}{name}",
            where,
            group,
            title or TITLES[last],
            f"{self.symbol(name)} = {right}",
            code,
            Definition(*definition),
        )

    def norm(self, name: str, weights: str, right: str, code: str, group: str = "norm") -> Iterator[Step]:
        """The three steps of a norm that reads `right`, which `code` computes."""
        layer, eps = self.a.norm.kind == "layer", self.a.norm.eps
        letter = "\\sigma_i" if layer else "\\rho_i"
        scale, normalized = f"\\t{{{self.scope}{name}.scale}}{{{letter}}}", f"{self.scope}{name}.normalized"
        centre = " - \\mu_i" if layer else ""
        mean_square = f"\\frac{{1}}{{m}} {{\\lVert {right}{centre} \\rVert}}^2"
        inside = self.a.norm.eps_at == "inside"
        root = f"\\sqrt{{{mean_square} + \\epsilon}}" if inside else f"\\sqrt{{{mean_square}}} + \\epsilon"
        square = "x.var(-1, unbiased=False, keepdim=True)" if layer else "x.square().mean(-1, keepdim=True)"
        size = f"({square} + {eps}).sqrt()" if inside else f"{square}.sqrt() + {eps}"
        where = self.scope + self.part
        yield Step(
            f"{self.scope}{name}.scale",
            where,
            group,
            NORM_PARTS["scale"],
            f"{scale} = {root}",
            f"x = {code}\nresult = {size}",
            Definition("layers.py", "normalise", 'inner("scale"'),
        )
        above = f"{right} - \\mu_i" if layer else right
        centred = "(x - x.mean(-1, keepdim=True))" if layer else "x"
        yield Step(
            normalized,
            where,
            group,
            NORM_PARTS["normalized"],
            f"\\t{{{normalized}}}{{\\hat{{x}}_i}} = \\frac{{{above}}}{{{scale}}}",
            f'x = {code}\nresult = {centred} / trace["{self.scope}{name}.scale"]',
            Definition("layers.py", "normalise", 'inner("normalized"'),
        )
        biased = layer and self.a.norm.bias == "all"
        gained = self.gained(self.weight(f"{weights}.gain"))
        beta = " + \\beta" if biased else ""
        added = f" + {self.weight(f'{weights}.bias')}" if biased else ""
        factors = "no coordinate has a factor" if self.a.norm.gain == "1" else "each coordinate with its own factor"
        yield Step(
            f"{self.scope}{name}",
            where,
            group,
            f"{'Layer norm' if layer else 'RMS norm'}: {factors}",
            f"{self.symbol(name)} = \\t{{{normalized}}}{{\\hat{{x}}_i}}{GAINED[self.a.norm.gain]}{beta}",
            f'result = trace["{normalized}"]{gained}{added}',
            Definition("layers.py", "normalise", "return tap(called"),
        )

    def gained(self, gain: str) -> str:
        """The product with a norm's factor, in code."""
        return {"g": f" * {gain}", "1+g": f" * (1 + {gain})", "1": ""}[self.a.norm.gain]

    def linear(self, name: str, x: str, bias: bool) -> str:
        """x W^T + b in code."""
        return f"{x} @ {self.weight(f'{name}.weight')}.T" + (f" + {self.weight(f'{name}.bias')}" if bias else "")

    # The stack --------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """The embedding, the blocks, and the readout."""
        stream = yield from self.embedding()
        for layer in range(self.a.n_layers):
            self.part = f"blocks.{layer}"
            stream = yield from self.block(layer, stream)
        self.part = "output"
        yield from self.readout(stream)

    def embedding(self):
        """The steps before the first block; returns the stream as symbols and as code."""
        a, file = self.a, "transformer.py"
        shared = self.scope and self.outer.source_embed == "shared"
        table = 'w["embed.token.weight"]' if shared else self.weight("embed.token.weight")
        ids = "trace.inputs.source.tokens" if self.scope else "trace.ids"
        factors = {"1": "", "sqrt(d_model)": "\\sqrt{m} ", "embed_scale_value": f"{a.embed_scale_value:g} "}
        factor = factors[a.embed_scale]
        of_tokens, of_sum = a.d_embed > 0 and a.embed_projection == "tokens", a.embed_projection == "sum"
        projection = f" @ {self.weight('embed.projection.weight')}.T" if a.d_embed else ""
        yield self.step(
            "embed",
            "embed",
            f"{factor}W_E [ t_i ]{' P^T' if of_tokens else ''}",
            f"result = {f'{a.embed_factor!r} * ' if factor else ''}{table}[{ids}]{projection if of_tokens else ''}",
            (file, "embed", 'tap("embed"'),
        )
        parts = ["embed"]
        if a.positions.kind == "learned":
            code = f"result = {self.weight('embed.position.weight')}[: {self.n}].expand_as({self.tensor('embed')})"
            yield self.step("pos_embed", "embed", "W_P [ i ]", code, (file, "embed", 'tap("pos_embed"'))
            parts.append("pos_embed")
        if a.positions.kind == "sinusoidal":
            base, sizes = f"{a.positions.base:g}", f"{a.embed_sum_width}, {a.positions.base!r}"
            right = f"(\\sin(i w_k), \\cos(i w_k))_k, \\; w_k = {base}^{{-2k/{'e' if of_sum else 'm'}}}"
            code = (
                "from pellucid.reference.embedding import sinusoid_at\nimport numpy as np\n"
                f"rows = sinusoid_at(np.arange({self.n}), {sizes}, {a.positions.layout!r})\n"
                f"result = torch.from_numpy(rows).expand_as({self.tensor('embed')})"
            )
            yield self.step(
                "pos_embed", "embed", right, code, (file, "embed", 'x = x + tap("pos_embed", np.broadcast_to(rows')
            )
            parts.append("pos_embed")
        if a.n_segments:
            code = f"result = {self.weight('embed.segment.weight')}[torch.zeros_like({ids})]"
            yield self.step("seg_embed", "embed", "W_S [ s_i ]", code, (file, "embed", 'tap("seg_embed"'))
            parts.append("seg_embed")
        if a.ngrams:
            sums = " + ".join(f"W_{n} [ r(t_{{i-{n - 1}}} \\dots t_i) ]" for n in a.ngrams)
            code = (
                "from pellucid.reference.embedding import ngram_embed\nimport numpy as np\n"
                f'tables = {{n: w[f"{self.scope}embed.ngrams.tables.{{n}}.weight"].cpu().numpy() '
                f"for n in {a.ngrams!r}}}\n"
                f"ids = {ids}.cpu().numpy()\n"
                "result = ngram_embed(tables, ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape))"
            )
            yield self.step("ngram_embed", "embed", sums, code, (file, "embed", 'tap("ngram_embed"'))
            parts.append("ngram_embed")
        right, code = " + ".join(map(self.symbol, parts)), " + ".join(map(self.tensor, parts))
        if a.embed_norm == "norm" and self.normed:
            yield from self.norm("embed_norm", "embed.norm", right, f"({code})")
            right, code, parts = self.symbol("embed_norm"), self.tensor("embed_norm"), ["embed_norm"]
        if of_sum:
            biased = f"({code}){projection} + {self.weight('embed.projection.bias')}"
            right = f"{right if len(parts) == 1 else f'({right})'} P^T + b_P"
            place = (file, "embed", 'tap("embed_projected"')
            yield self.step("embed_projected", "embed", right, f"result = {biased}", place)
            right, code = self.symbol("embed_projected"), self.tensor("embed_projected")
        return right, code

    def block(self, layer: int, stream: tuple[str, str]):
        """The steps of one block that reads `stream`; returns the stream behind it."""
        a, at, kind = self.a, f"blocks.{layer}.", self.a.block
        function = BLOCK_FUNCTIONS[kind]
        crossed = a.encoder is not None
        pre, mid, cross, post = (at + name for name in ("resid_pre", "resid_mid", "resid_cross", "resid_post"))
        attn_out, cross_out, mlp_out = at + "attn_out", at + "cross_out", at + "mlp_out"

        def added(name: str, group: str, *terms: str) -> Step:
            right, code = " + ".join(map(self.symbol, terms)), " + ".join(map(self.tensor, terms))
            marker = f'tap("{name.removeprefix(at)}"'
            return self.step(name, group, right, f"result = {code}", ("transformer.py", function, marker))

        def norm(name: str, right: str, code: str) -> Iterator[Step]:
            return self.norm(at + name, at + name, right, code) if self.normed else iter(())

        def behind(name: str, otherwise: str) -> str:
            return at + name if self.normed else otherwise

        yield self.step(
            pre, "stream", stream[0], f"result = {stream[1]}", ("transformer.py", function, 'tap("resid_pre"')
        )
        before = kind in ("pre", "parallel", "shared", "sandwich") and "norm_1" in a.norms_of(layer)
        if before:
            yield from norm("norm_1", self.symbol(pre), self.tensor(pre))
        yield from self.attention(layer, "attn", behind("norm_1", pre) if before else pre)
        summed, sum_code = self.head_sum(at + "attn")
        if kind in ("inner", "sandwich") and self.normed:
            yield from norm("norm_1_out", summed, f"({sum_code})")
            summed, sum_code = self.symbol(at + "norm_1_out"), self.tensor(at + "norm_1_out")
        summed, sum_code = self.scaled(summed, sum_code)
        yield self.step(
            attn_out, "attention", summed, f"result = {sum_code}", ("transformer.py", function, 'tap("attn_out"')
        )
        if kind in ("parallel", "shared"):
            if kind == "parallel":
                yield from norm("norm_2", self.symbol(pre), self.tensor(pre))
            reads = behind("norm_2" if kind == "parallel" else "norm_1", pre)
            yield from self.mlp(layer, reads if before or kind == "parallel" else pre)
            yield from self.mlp_out(layer, function)
            yield added(post, "stream", pre, attn_out, mlp_out)
            return self.symbol(post), self.tensor(post)
        yield added(mid, "stream", pre, attn_out)
        last = mid
        if kind == "post":
            yield from norm("norm_1", self.symbol(mid), self.tensor(mid))
            last = behind("norm_1", mid)
        if crossed:
            if kind == "pre":
                yield from norm("norm_cross", self.symbol(mid), self.tensor(mid))
            yield from self.attention(layer, "cross", behind("norm_cross", mid) if kind == "pre" else last)
            right, code = self.scaled(*self.head_sum(at + "cross"))
            yield self.step(
                cross_out, "cross", right, f"result = {code}", ("transformer.py", function, 'tap("cross_out"')
            )
            yield added(cross, "stream", last, cross_out)
            last = cross
            if kind == "post":
                yield from norm("norm_cross", self.symbol(cross), self.tensor(cross))
                last = behind("norm_cross", cross)
        reads = last
        if kind in ("pre", "sandwich"):
            yield from norm("norm_2", self.symbol(last), self.tensor(last))
            reads = behind("norm_2", last)
        yield from self.mlp(layer, reads)
        yield from self.mlp_out(layer, function)
        if kind == "post" and self.normed:
            right, code = (
                f"{self.symbol(last)} + {self.symbol(mlp_out)}",
                f"({self.tensor(last)} + {self.tensor(mlp_out)})",
            )
            yield from norm("norm_2", right, code)
            yield added(post, "stream", at + "norm_2")
        else:
            yield added(post, "stream", last, mlp_out)
        return self.symbol(post), self.tensor(post)

    def scaled(self, right: str, code: str) -> tuple[str, str]:
        """What a sublayer computes, times residual_scale, as symbols and as code."""
        c = self.a.residual_scale
        return (right, code) if c == 1 else (f"{c:g} ({right})", f"{c!r} * ({code})")

    def head_sum(self, at: str) -> tuple[str, str]:
        """The sum over the heads, as symbols and as code."""
        biased = self.a.attention.bias in ("out", "all")
        code = f"{self.tensor(at + '.result')}.sum(1)" + (f" + {self.weight(at + '.out.bias')}" if biased else "")
        return f"\\sum_h {self.symbol(at + '.result')}{' + b_O' if biased else ''}", code

    def attention(self, layer: int, kind: str, reads: str) -> Iterator[Step]:
        """The steps of attention to this stream (attn) or to the source (cross)."""
        a, at = self.a, f"blocks.{layer}.{kind}."
        group = "attention" if kind == "attn" else "cross"
        biased = a.attention.bias in ("qkv", "all")
        source, source_code = (self.symbol(reads), self.tensor(reads))
        if kind == "cross":
            encoder = StepWriter(self.outer.encoder, "encoder.", self.outer)  # type: ignore[arg-type]
            source, source_code = encoder.output()
        for name, weight, matrix in (("q", "query", "Q"), ("k", "key", "K"), ("v", "value", "V")):
            right = self.symbol(reads) if name == "q" else at_key(source)
            x = self.tensor(reads) if name == "q" else source_code
            code = f"({self.linear(at + weight, x, biased)}).unflatten(-1, (-1, {a.d_head})).transpose(1, 2)"
            equation = f"{right} {{W_{matrix}^h}}^T{f' + b_{matrix}^h' if biased else ''}"
            marker = f'heads("{weight}"'
            yield self.step(
                at + name, group, equation, f"result = {code}", ("layers.py", "_queries_keys_values", marker)
            )
        turned = kind == "attn" and a.rotates(layer)
        if turned:
            for name, letter in (("q", "i"), ("k", "j")):
                inner = self.normed_symbol(at + name)
                code = (
                    "from pellucid.reference.embedding import rotate\n"
                    "from pellucid.reference.layers import rotary_factor, rotary_frequencies\nimport numpy as np\n"
                    f"x = {self.normed_heads(at, name)}.cpu().numpy()\n"
                    f"result = rotate(x, np.arange(x.shape[2]), d_rotary={a.d_rotary}, layout={a.positions.layout!r}, "
                    f"w=rotary_frequencies({self.arch}, {layer}, np.arange(x.shape[2])), "
                    f"c=rotary_factor({self.arch}, {layer}))"
                )
                definition = ("layers.py", "self_attention", 'q, k = tap("rot_q"')
                yield self.step(at + f"rot_{name}", group, f"R_{letter} {inner}", code, definition)
        yield from self.mixing(layer, kind, turned)

    def normed_symbol(self, name: str) -> str:
        """Queries or keys behind their norm, in symbols."""
        a, x = self.a, self.symbol(name)
        if a.attention.qk_norm == "none":
            return x
        if a.attention.qk_norm.startswith("rms"):
            return f"\\frac{{{x}}}{{\\text{{rms}}}}{GAINED[a.norm.gain]}"
        beta = " + \\beta" if a.attention.qk_norm == "layer" and a.norm.bias == "all" else ""
        return f"(\\frac{{{x} - \\mu}}{{\\sigma}}{GAINED[a.norm.gain]}{beta})"

    def normed_heads(self, at: str, name: str) -> str:
        """Queries or keys behind their norm, in code."""
        kind, x = self.a.attention.qk_norm, self.tensor(at + name)
        if kind == "none":
            return x
        norm = "query_norm" if name == "q" else "key_norm"
        gain = self.weight(at + f"{norm}.gain")
        gained = self.gained(f"{gain}.view(-1, 1, {self.a.d_head})" if kind == "layer_own" else gain)
        if kind in ("layer", "layer_own"):
            centred = f"({x} - {x}.mean(-1, keepdim=True))"
            size = f"({x}.var(-1, unbiased=False, keepdim=True) + {self.a.norm.eps}).sqrt()"
            bias = self.weight(at + f"{norm}.bias") if kind == "layer" and self.a.norm.bias == "all" else "0"
            return f"({centred} / {size}{gained} + {bias})"
        if kind == "rms_all":
            flat = f"{x}.transpose(1, 2).flatten(2)"
            normed = f"{flat} / ({flat}.square().mean(-1, keepdim=True) + {self.a.norm.eps}).sqrt(){gained}"
            return f"({normed}).unflatten(-1, (-1, {self.a.d_head})).transpose(1, 2)"
        return f"({x} / ({x}.square().mean(-1, keepdim=True) + {self.a.norm.eps}).sqrt(){gained})"

    def softmax(self, at: str) -> tuple[str, str]:
        """The pattern of an attention from its scores, as an equation and in code."""
        s, scores = self.symbol(at + "scores"), self.tensor(at + "scores")
        return f"\\frac{{\\exp {s}}}{{\\sum_j \\exp {s}}}", f"result = {scores}.softmax(-1)"

    def mixing(self, layer: int, kind: str, turned: bool) -> Iterator[Step]:
        """Scores, pattern, mixed values, and what each head writes."""
        a, at = self.a, f"blocks.{layer}.{kind}."
        group = "attention" if kind == "attn" else "cross"
        q, k = (at + f"rot_{name}" if turned else at + name for name in "qk")
        query, key = (
            (self.tensor(q), self.tensor(k)) if turned else (self.normed_heads(at, "q"), self.normed_heads(at, "k"))
        )
        shared = f".repeat_interleave({a.n_heads // a.n_kv_heads}, 1)" if a.n_kv_heads < a.n_heads else ""
        lines = [f"s = {a.score_scale!r} * {query} @ {key}{shared}.transpose(-1, -2)"]
        scales = {
            "1/sqrt(d_head)": "\\frac{1}{\\sqrt{d}} ",
            "1/d_head": "\\frac{1}{d} ",
            "1": "",
            "1/sqrt(d_model/n_heads)": "\\frac{1}{\\sqrt{m/H}} ",
            "scale_value": f"{a.attention.scale_value:g} ",
        }
        normed = a.attention.qk_norm != "none" and not turned
        product = (
            f"{self.symbol(q)} \\cdot {self.symbol(k)}"
            if not normed
            else f"\\text{{norm}}({self.symbol(q)}) \\cdot \\text{{norm}}({self.symbol(k)})"
        )
        right = f"{scales[a.attention.scale]}{product}"
        if a.attention.score_cap:
            c = a.attention.score_cap
            right = f"{c:g} \\tanh({right} / {c:g})"
            lines.append(f"s = {c!r} * (s / {c!r}).tanh()")
        if kind == "attn" and a.biases_scores:
            table = f"{self.weight('relative.weight')}.cpu().numpy()" if a.positions.kind == "relative" else "None"
            right += " - s_h (i - j)" if a.positions.kind == "alibi" else " + b_h [ r(i - j) ]"
            lines += [
                "from pellucid.reference.layers import distances",
                f"bias = torch.from_numpy(distances({self.arch}, {self.n}, {self.n}, {table}))",
                "s = s + bias.to(s.dtype).to(s.device)",
            ]
        if kind == "attn":
            window = a.window(layer)
            rule = {"causal": "j \\le i", "prefix": "j \\le i", "bidirectional": ""}[a.attention.mask]
            rule = ", \\; ".join(filter(None, [rule, f"i - j < {window}" if window else ""]))
            right += f", \\; {rule}" if rule else ""
            lines += [
                "from pellucid.reference.layers import visible_keys",
                f"may_read = torch.from_numpy(visible_keys({self.arch}, {layer}, {self.n}, {self.n}, None))",
                "s = s.masked_fill(~may_read.to(s.device), -torch.inf)",
            ]
        lines.append("result = s")
        yield self.step(at + "scores", group, right, "\n".join(lines), ("layers.py", "_mix", "scores = soft_cap"))
        yield self.step(at + "pattern", group, *self.softmax(at), ("layers.py", "_mix", 'tap("pattern"'))
        yield self.step(
            at + "z",
            group,
            f"\\sum_j {self.symbol(at + 'pattern')} {self.symbol(at + 'v')}",
            f"result = {self.tensor(at + 'pattern')} @ {self.tensor(at + 'v')}{shared}",
            ("layers.py", "_mix", 'tap("z"'),
        )
        out = f"{self.weight(at + 'out.weight')}.unflatten(1, ({a.n_heads}, {a.d_head}))"
        yield self.step(
            at + "result",
            group,
            f"{self.symbol(at + 'z')} {{W_O^h}}^T",
            f'result = torch.einsum("bhid,mhd->bhim", {self.tensor(at + "z")}, {out})',
            ("layers.py", "_mix", 'tap("result"'),
        )

    def mlp(self, layer: int, reads: str) -> Iterator[Step]:
        """The hidden layers of an MLP, or of every expert."""
        a, at = self.a, f"blocks.{layer}.mlp."
        if a.mlp.experts:
            yield from mixture_steps(self, at, reads)
            return
        yield from self.hidden_layers(at, at, reads)

    def hidden_layers(self, at: str, weights: str, reads: str) -> Iterator[Step]:
        """The hidden layers of one MLP, whose tensors begin with `at` and its parameters with `weights`."""
        a = self.a
        biased = a.mlp.bias == "all"
        symbol, activation = ACTIVATIONS[a.mlp.activation]
        x = reads
        for n in range(a.mlp.n_hidden):
            number = f".{n}" if a.mlp.n_hidden > 1 else ""
            gated = a.mlp.form == "gated"
            if gated:
                right = linear_equation(self.symbol(x), "gate", biased)
                code = f"result = {self.linear(weights + 'gate', self.tensor(x), biased)}"
                yield self.step(at + "gate", "mlp", right, code, ("layers.py", "single_mlp", "gate = tap"))
            pre, post = at + f"pre{number}", at + f"post{number}"
            right = linear_equation(self.symbol(x), "up", biased)
            code = f"result = {self.linear(f'{weights}up.{n}', self.tensor(x), biased)}"
            yield self.step(pre, "mlp", right, code, ("layers.py", "single_mlp", "pre = tap"))
            right, code = f"{symbol}({self.symbol(pre)})", f"result = {activation.format(self.tensor(pre))}"
            if gated:
                right, code = self.gated(at, pre, symbol, activation)
            yield self.step(post, "mlp", right, code, ("layers.py", "single_mlp", "x = tap"))
            x = post
        self.hidden = x

    def gated(self, at: str, pre: str, symbol: str, activation: str) -> tuple[str, str]:
        """The product of a gated MLP's hidden layer, as an equation and in code."""
        gate, up = self.tensor(at + "gate"), self.tensor(pre)
        equation = f"{symbol}({self.symbol(at + 'gate')}) \\odot {self.symbol(pre)}"
        return equation, f"result = ({activation.format(gate)}) * {up}"

    def mlp_out(self, layer: int, function: str) -> Iterator[Step]:
        """What the MLP writes, behind its norm where there is one."""
        a, at = self.a, f"blocks.{layer}."
        biased = a.mlp.bias == "all"
        right = linear_equation(self.symbol(self.hidden), "down", biased)
        code = self.linear(at + "mlp.down", self.tensor(self.hidden), biased)
        if a.mlp.experts:
            right, code = sum_of_experts(self, at + "mlp.")
        if a.block in ("inner", "sandwich") and self.normed:
            yield from self.norm(at + "norm_2_out", at + "norm_2_out", right, f"({code})")
            right, code = self.symbol(at + "norm_2_out"), self.tensor(at + "norm_2_out")
        right, code = self.scaled(right, code)
        yield self.step(at + "mlp_out", "mlp", right, f"result = {code}", ("transformer.py", function, 'tap("mlp_out"'))

    # The readout ------------------------------------------------------------------------------

    def output(self) -> tuple[str, str]:
        """The stack's last stream, as a symbol and as code."""
        a = self.a
        if a.final_norm == "norm" and self.normed:
            return self.symbol("final_norm"), self.tensor("final_norm")
        if a.n_layers:
            last = f"blocks.{a.n_layers - 1}.resid_post"
            return self.symbol(last), self.tensor(last)
        return self.symbol("embed"), self.tensor("embed")

    def readout(self, stream: tuple[str, str]) -> Iterator[Step]:
        """The final norm, the logits and the probabilities."""
        a = self.a
        if a.final_norm == "norm" and self.normed:
            yield from self.norm("final_norm", "final_norm", stream[0], f"({stream[1]})")
            stream = self.symbol("final_norm"), self.tensor("final_norm")
        if self.scope or a.readout == "none":
            return
        table = 'w["embed.token.weight"]' if a.unembed == "tied" else 'w["unembed.weight"]'
        scale, x = a.unembed_scale, stream[1]
        lines = []
        right = stream[0]
        if a.readout == "bert":
            symbol, activation = ACTIVATIONS[a.mlp.activation]
            b = a.readout_bias in ("all", "dense")
            dense = "(" + x + ') @ w["unembed.dense.weight"].T' + (' + w["unembed.dense.bias"]' if b else "")
            lines += [f"x = {activation.format(f'({dense})')}"]
            right = f"{symbol}({right} W^T{' + b' if b else ''})"
            if self.normed:
                layer = a.norm.kind == "layer"
                centred = "(x - x.mean(-1, keepdim=True))" if layer else "x"
                square = "x.var(-1, unbiased=False, keepdim=True)" if layer else "x.square().mean(-1, keepdim=True)"
                size = (
                    f"({square} + {a.norm.eps}).sqrt()"
                    if a.norm.eps_at == "inside"
                    else f"({square}.sqrt() + {a.norm.eps})"
                )
                gained = self.gained('w["unembed.norm.gain"]')
                bias = ' + w["unembed.norm.bias"]' if layer and a.norm.bias == "all" else ""
                lines.append(f"x = {centred} / {size}{gained}{bias}")
                right = f"\\text{{norm}}({right})"
            x = "x"
        elif a.d_embed:
            x = f'({x}) @ w["unembed.projection.weight"].T'
            right = f"{right} Q^T"
        factor = "" if scale == 1.0 else f"{scale!r} * "
        biased = a.readout in ("affine", "bert") and a.readout_bias in ("all", "logits")
        lines.append(f"result = {factor}({x}) @ {table}.T" + (' + w["unembed.bias"]' if biased else ""))
        factors = {"1": "", "1/sqrt(d_model)": "\\frac{1}{\\sqrt{m}} ", "logit_scale_value": f"{scale:g} "}
        rooted = factors[a.logit_scale]
        right = f"{rooted}{right} {{W_U}}^T{' + b_U' if biased else ''}"
        if a.logit_cap:
            right = f"{a.logit_cap:g} \\tanh({right} / {a.logit_cap:g})"
            lines.append(f"result = {a.logit_cap!r} * (result / {a.logit_cap!r}).tanh()")
        yield self.step("logits", "output", right, "\n".join(lines), ("transformer.py", "readout", "logits = x @"))
        yield self.step(
            "probs",
            "output",
            f"\\frac{{\\exp {self.symbol('logits')}}}{{\\sum_v \\exp l_{{iv}}}}",
            'result = trace["logits"].softmax(-1)',
            ("transformer.py", "trace_by_definition", "probs"),
            title="The probabilities at the masked token" if a.attention.mask == "bidirectional" else "",
        )


def at_key(symbol: str) -> str:
    """The symbol of a vector at position j instead of i."""
    return symbol.replace("_i", "_j")
