"""The steps of small networks without attention, Bengio's and recurrent ones; `steps` has those of transformers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from pellucid.look.predictor_trace import PredictorTrace
from pellucid.look.session import Model
from pellucid.look.step import Definition, Step
from pellucid.predictors.mixture import NGramMixture
from pellucid.predictors.neural import NeuralProbabilistic
from pellucid.predictors.recurrent import Recurrent

#: what the code of a step needs besides `trace`
PREAMBLE = (
    "from pellucid.look.predictor_steps import step_tensors\n\n"
    "network, tokens, tensors = trace.network, trace.ids, step_tensors(trace, -1)  # of the last token\n"
    "w = network.state_dict()\n"
)
#: the axis of each step's tensor at one position: widths of vectors
AXES = {
    "x": ["m"],
    "hidden.pre": ["f"],
    "hidden": ["f"],
    "gates.r": ["f"],
    "gates.z": ["f"],
    "gates.n": ["f"],
    "state": ["f"],
    "logits": ["v"],
    "probs": ["v"],
}


def network_steps(model: Model) -> list[Step]:
    """The steps of the network in a predictor, none for an n-gram."""
    network: Any = model.network.network if isinstance(model.network, NGramMixture) else model.network
    if isinstance(network, NeuralProbabilistic):
        return list(neural_steps(network))
    return list(recurrent_steps(network)) if isinstance(network, Recurrent) else []


def symbol(name: str, drawn: str) -> str:
    """The live symbol of a step's tensor."""
    return f"\\t{{{name}}}{{{drawn}}}"


def neural_steps(network: NeuralProbabilistic) -> Iterator[Step]:
    """y = b + W x + U tanh(d + H x), Bengio et al. 2003, equation 1."""
    reach, direct = network.choices.reach, network.choices.direct == "all"
    where = ("predictors.py", "neural_probabilistic_lm")
    x, hidden, y = symbol("x", "x"), symbol("hidden", "h"), symbol("logits", "y")
    pre = symbol("hidden.pre", "n")
    last = f"C [ t_{{i - {reach - 1}}} ]"
    rows = f"C [ t_i ] , \\dots , {last}" if reach > 2 else f"C [ t_i ] , {last}" if reach == 2 else "C [ t_i ]"
    yield Step(
        "x",
        "embed",
        "embed",
        f"The last {reach} tokens as one vector, the nearest first" if reach > 1 else "The last token as a vector",
        f"{x} = ( {rows} )",
        "result = w['embed.weight'][network.contexts(tokens)[0, -1]].flatten()",
        Definition(*where, "x = real(C)[np.asarray(context)]"),
    )
    yield Step(
        "hidden.pre",
        "hidden",
        "hidden",
        "What each hidden unit adds up",
        f"{pre} = d + H {x}",
        "result = tensors['x'] @ w['hidden.weight'].T + w['hidden.bias']",
        Definition(*where, "np.tanh("),
    )
    yield Step(
        "hidden",
        "hidden",
        "hidden",
        "The hidden units, squeezed between -1 and 1",
        f"{hidden} = tanh ( {pre} )",
        "result = tensors['hidden.pre'].tanh()",
        Definition(*where, "np.tanh("),
    )
    yield Step(
        "logits",
        "output",
        "logits",
        "A score for each token of the vocabulary",
        f"{y} = b + {f'W {x} + ' if direct else ''}U {hidden}",
        "result = tensors['hidden'] @ w['out.weight'].T + w['out.bias']"
        + (" + tensors['x'] @ w['direct.weight'].T" if direct else ""),
        Definition(*where, "log_softmax(y if"),
    )
    yield probabilities_step(Definition(*where, "log_softmax(y if"))


def recurrent_steps(network: Recurrent) -> Iterator[Step]:
    """The recurrence of one token, and the readout of its state."""
    elman = network.choices.cell == "elman"
    where = ("predictors.py", "recurrent_lm")
    x, state, y = symbol("x", "x_i"), symbol("state", "h_i"), symbol("logits", "y_i")
    own = Definition("recurrent.py", "Recurrent.forward", "states, _ = self.cell", "predictors")
    yield Step(
        "x",
        "embed",
        "embed",
        "Each token becomes a vector",
        f"{x} = C [ t_i ]",
        "result = w['embed.weight'][tokens[0, -1]]",
        Definition(*where, "h = np.tanh(") if elman else own,
    )
    before = "from pellucid.look.predictor_steps import state_before\n\nh = state_before(network, tokens)\n"
    if elman:
        yield Step(
            "state",
            "hidden",
            "state",
            "The state: all that is kept of what was read",
            f"{state} = tanh ( U {x} + W h_{{i - 1}} + b )",
            before + "inner = w['cell.bias_ih_l0'] + w['cell.bias_hh_l0']\n"
            "result = (tensors['x'] @ w['cell.weight_ih_l0'].T + h @ w['cell.weight_hh_l0'].T + inner).tanh()",
            Definition(*where, "h = np.tanh("),
        )
    else:
        parts = "u = (tensors['x'] @ w['cell.weight_ih_l0'].T + w['cell.bias_ih_l0']).chunk(3)\n"
        parts += "v = (h @ w['cell.weight_hh_l0'].T + w['cell.bias_hh_l0']).chunk(3)\n"
        r, z, n = symbol("gates.r", "r"), symbol("gates.z", "z"), symbol("gates.n", "n")
        gates = (
            (
                "gates.r",
                "How much of the old state the new part reads",
                f"{r} = \\sigma ( U_r {x} + W_r h_{{i - 1}} + b_r )",
                "(u[0] + v[0]).sigmoid()",
            ),
            (
                "gates.z",
                "How much of the old state stays",
                f"{z} = \\sigma ( U_z {x} + W_z h_{{i - 1}} + b_z )",
                "(u[1] + v[1]).sigmoid()",
            ),
            (
                "gates.n",
                "The new part of the state",
                f"{n} = tanh ( U_n {x} + b_n + {r} \\odot ( W_n h_{{i - 1}} + a_n ) )",
                "(u[2] + tensors['gates.r'] * v[2]).tanh()",
            ),
        )
        for name, title, equation, code in gates:
            yield Step(name, "hidden", "state", title, equation, f"{before}{parts}result = {code}", own)
        yield Step(
            "state",
            "hidden",
            "state",
            "The state: all that is kept of what was read",
            f"{state} = ( 1 - {z} ) \\odot {n} + {z} \\odot h_{{i - 1}}",
            before + "result = (1 - tensors['gates.z']) * tensors['gates.n'] + tensors['gates.z'] * h",
            own,
        )
    readout = Definition(*where, "return log_softmax(") if elman else replace_line(own, "return self.out")
    yield Step(
        "logits",
        "output",
        "logits",
        "A score for each token of the vocabulary",
        f"{y} = c + V {state}",
        "result = tensors['state'] @ w['out.weight'].T + w['out.bias']",
        readout,
    )
    yield probabilities_step(readout)


def replace_line(definition: Definition, line: str) -> Definition:
    """Another line of the same function."""
    return Definition(definition.file, definition.function, line, definition.room)


def probabilities_step(definition: Definition) -> Step:
    """Softmax of the logits."""
    p, y = symbol("probs", "P"), symbol("logits", "y")
    title = "The probabilities of the next token"
    return Step(
        "probs",
        "output",
        "logits",
        title,
        f"{p} = softmax ( {y} )",
        "result = tensors['logits'].softmax(-1)",
        definition,
    )


@torch.inference_mode()
def step_tensors(trace: PredictorTrace, pos: int) -> dict[str, torch.Tensor]:
    """Every tensor of the network at one position, by the name of its step; none for an n-gram."""
    network: Any = trace.network
    tokens = trace.ids[:, : trace.position(pos) + 1].to(device_of(network))
    tensors: dict[str, torch.Tensor] = {}
    if isinstance(network, NeuralProbabilistic):
        context = network.contexts(tokens)[0, -1]
        tensors["x"] = network.embed(context).flatten()
        tensors["hidden.pre"] = network.hidden(tensors["x"])
        tensors["hidden"] = tensors["hidden.pre"].tanh()
        tensors["logits"] = network.out(tensors["hidden"]) + network.direct(tensors["x"])
    elif isinstance(network, Recurrent):
        cell: Any = network.cell
        x: torch.Tensor = network.embed(tokens)[0, -1]
        h = state_before(network, tokens)
        tensors["x"] = x
        if isinstance(cell, nn.GRU):
            w: dict[str, torch.Tensor] = dict(cell.named_parameters())
            inner = (x @ w["weight_ih_l0"].T + w["bias_ih_l0"]).chunk(3)
            recurrent = (h @ w["weight_hh_l0"].T + w["bias_hh_l0"]).chunk(3)
            tensors["gates.r"] = (inner[0] + recurrent[0]).sigmoid()
            tensors["gates.z"] = (inner[1] + recurrent[1]).sigmoid()
            tensors["gates.n"] = (inner[2] + tensors["gates.r"] * recurrent[2]).tanh()
        tensors["state"] = cell(network.embed(tokens))[0][0, -1]
        tensors["logits"] = network.out(tensors["state"])
    if tensors:
        tensors["probs"] = tensors["logits"].softmax(-1)
    return {name: x.cpu() for name, x in tensors.items()}


@torch.inference_mode()
def state_before(network: Recurrent, tokens: torch.Tensor) -> torch.Tensor:
    """The state that a recurrent network is in when it reads the last of the tokens [1, n]: 0 before the first one."""
    if tokens.size(1) == 1:
        return torch.zeros_like(network.cell(network.embed(tokens))[0][0, -1])
    return network.cell(network.embed(tokens[:, :-1]))[0][0, -1]


def device_of(network: nn.Module) -> torch.device:
    """Where the weights of a network are; an n-gram has none, and its counts are on the CPU."""
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def step_numbers(trace: PredictorTrace, part: str, pos: int) -> dict[str, np.ndarray]:
    """The tensors of a part of the network at one position, by name. Raises KeyError where there is no such part."""
    names = [step.name for step in network_steps(trace.predictor) if step.part == part]
    if not names:
        raise KeyError(f"this predictor has no part {part!r}")
    tensors = step_tensors(trace, pos)
    return {name: tensors[name].float().numpy() for name in names}
