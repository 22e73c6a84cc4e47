"""The steps of a mixture of experts: the router, every expert, the shared one, and their sum."""

import re
from collections.abc import Iterator
from typing import Protocol

from pellucid.architecture import Architecture
from pellucid.look.step import Step, linear_equation

EXPERT_SYMBOLS = {"router": "r_i", "expert_weights": "g_i"}
EXPERT_TITLES = {
    "router": "A score for each expert",
    "expert_weights": "The weights of the experts, 0 for those that are not used",
}


def expert_symbol(name: str) -> str:
    """The symbol of what an expert writes, with its number, or of what the shared one does; "" for other tensors."""
    match = re.search(r"\.mlp\.(?:expert_(\d+)|shared)\.result$", name)
    return (match and f"o_i^{{{match[1] or 's'}}}") or ""


class MlpStepWriter(Protocol):
    """What these functions ask of the writer of a model's steps, which is in steps.py."""

    a: Architecture

    def symbol(self, name: str, at: str = "") -> str: ...

    def tensor(self, name: str) -> str: ...

    def linear(self, name: str, x: str, bias: bool) -> str: ...

    def step(
        self, name: str, group: str, right: str, code: str, definition: tuple[str, str, str], title: str = ""
    ) -> Step: ...

    def hidden_layers(self, at: str, weights: str, reads: str) -> Iterator[Step]: ...


def mixture_steps(steps: MlpStepWriter, at: str, reads: str) -> Iterator[Step]:
    """The router's logits, the weights of the experts, and what each expert computes from `reads`."""
    mlp, x = steps.a.mlp, steps.tensor(reads)
    where = "layers.py", "mixture_of_experts"
    right = f"{steps.symbol(reads)} W_R^T"
    code = f"result = {steps.linear(at + 'router', x, False)}"
    yield steps.step(at + "router", "mlp", right, code, (*where, 'tap("router"'))
    yield steps.step(at + "expert_weights", "mlp", *expert_weights(steps, at), (*where, 'tap("expert_weights"'))
    for e in range(mlp.experts):
        inner, weights = f"{at}expert_{e}.", f"{at}experts.{e}."
        yield from steps.hidden_layers(inner, weights, reads)
        out, code = expert_output(steps, inner, weights)
        g = f"{steps.tensor(at + 'expert_weights')}[..., {e}, None]"
        right = f"{steps.symbol(at + 'expert_weights')}[{e}] ({out})"
        title = f"What expert {e} writes, times its weight"
        yield steps.step(inner + "result", "mlp", right, f"result = {g} * ({code})", (*where, 'inner("result"'), title)
    if mlp.shared_d_ff:
        inner, weights = f"{at}shared.", f"{at}shared.mlp."
        yield from steps.hidden_layers(inner, weights, reads)
        right, code = expert_output(steps, inner, weights)
        if mlp.shared_gate == "sigmoid":
            right = f"\\sigma({steps.symbol(reads)} w_s^T) ({right})"
            code = f"({steps.linear(at + 'shared.scale', x, False)}).sigmoid() * ({code})"
        title = "What the shared expert writes"
        yield steps.step(inner + "result", "mlp", right, f"result = {code}", (*where, 'inner("result", scale'), title)


def expert_weights(steps: MlpStepWriter, at: str) -> tuple[str, str]:
    """The weights of the experts, as a formula and as code."""
    k, r = steps.a.mlp.experts_per_token, steps.tensor(at + "router")
    symbol = steps.symbol(at + "router")
    chosen = f"chosen = torch.zeros_like({r}, dtype=torch.bool).scatter(-1, {r}.topk({k}).indices, True)"
    if steps.a.mlp.router_softmax == "chosen":
        right = f"\\text{{softmax}}_{{e \\in U}} {symbol}"
        return right, f"{chosen}\nresult = {r}.masked_fill(~chosen, -torch.inf).softmax(-1)"
    right = f"[e \\in U] \\text{{softmax}}_e {symbol}"
    return right, f"{chosen}\nresult = {r}.softmax(-1).masked_fill(~chosen, 0.0)"


def expert_output(steps: MlpStepWriter, inner: str, weights: str) -> tuple[str, str]:
    """What one expert's last map computes, before its weight, as a formula and as code."""
    has_bias = steps.a.mlp.bias == "all"
    right = linear_equation(steps.symbol(inner + "post"), "down", has_bias)
    return right, steps.linear(weights + "down", steps.tensor(inner + "post"), has_bias)


def sum_of_experts(steps: MlpStepWriter, at: str) -> tuple[str, str]:
    """What the mixture adds to the stream, as a formula and as code."""
    names = [f"{at}expert_{e}.result" for e in range(steps.a.mlp.experts)]
    names += [f"{at}shared.result"] * (steps.a.mlp.shared_d_ff > 0)
    return " + ".join(map(steps.symbol, names)), " + ".join(map(steps.tensor, names))
