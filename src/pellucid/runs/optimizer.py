"""AdamW and Muon as one optimiser whose bad steps leave no trace."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.runs.adamw import AdamW
from pellucid.runs.muon import Muon
from pellucid.runs.options import OptimizerName, RecipeError, RunRecipe
from pellucid.runs.parameter_groups import ParameterGroups
from pellucid.runs.processes import SINGLE_PROCESS, Processes

#: the precision of Muon's iteration where a recipe has another than float32
MUON_DTYPES = {"bfloat16": torch.bfloat16}
#: what each optimiser remembers of a parameter
STATE = {"AdamW": ("step", "exp_avg", "exp_avg_sq"), "Muon": ("momentum_buffer",)}
#: the least and the largest weight decay that is chosen (docs/experiments/rates.md)
WEIGHT_DECAYS = (0.1, 0.7)


def is_hidden_matrix(name: str, p: Tensor) -> bool:
    """Whether Muon may have it: the two-dimensional weights inside the blocks, not embeddings and readout."""
    return p.ndim == 2 and "blocks." in name


def optimizer_of(name: str, p: Tensor, optimizer: OptimizerName) -> OptimizerName:
    """Which optimiser updates this parameter, by the option of a recipe."""
    return "muon" if optimizer == "muon" and is_hidden_matrix(name, p) else "adamw"


class Optimizer:
    """AdamW for everything (`adamw`), or Muon for hidden matrices and AdamW for the rest (`muon`).

    Weight decay is decoupled and on matrices only: norms, biases and other vectors never decay. A tied matrix is one
    parameter, counted once; what is frozen has no state. Sources: Loshchilov and Hutter 2017; Jordan et al. 2024.
    """

    def __init__(
        self,
        model: nn.Module,
        word: OptimizerName,
        *,
        learning_rate: float,
        muon_learning_rate: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        muon_dtype: torch.dtype = torch.float32,
        processes: Processes = SINGLE_PROCESS,
    ):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        of: dict[str, list[tuple[str, nn.Parameter]]] = {"muon": [], "adamw": []}
        for n, p in named:
            of[optimizer_of(n, p, word)].append((n, p))
        # a step keeps 1 - rate x decay of a number, 0 at least, since numbers would else change their signs, and grow;
        # `check_rates` refuses such a run, but its steps are timed before
        matrix_decay, muon_decay = min(weight_decay, 1 / learning_rate), min(weight_decay, 1 / muon_learning_rate)
        rest, hidden = [p for _, p in of["adamw"]], [p for _, p in of["muon"]]
        groups = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": matrix_decay},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self.names = {p: n for n, p in named}
        self.adamw = AdamW(groups, learning_rate, betas, eps) if groups else None
        self.muon = Muon(hidden, muon_learning_rate, muon_decay, muon_dtype, processes) if hidden else None
        self.parts: Sequence[ParameterGroups] = [part for part in (self.adamw, self.muon) if part]
        self.peaks = [[group["lr"] for group in part.param_groups] for part in self.parts]

    def set_factor(self, factor: float) -> None:
        """Learning rates for the next step: the peaks times `factor`."""
        for part, peaks in zip(self.parts, self.peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self, bad: Tensor) -> None:
        """One update, unless `bad` (a boolean scalar on the model's device): then nothing changes, bit for bit.

        The decision stays on the device: old values are selected, or the update passed over. Multiplying by
        zero would not do: 0 * inf is not 0.
        """
        for part in self.parts:
            part.step(bad)
            # the kernel of AdamW leaves PyTorch's count of changes as it was, by which packed weights and
            # compiled steps know that they are out of date (`generate.pack_weights.weights_state`)
            torch.autograd.graph.increment_version(part.params)

    def state(self) -> dict[str, Tensor]:
        """Every number the optimiser remembers, as `parameter name/quantity`."""
        quantities: dict[str, Tensor] = {}
        for part in self.parts:
            for p in part.params:
                for key, value in part.state[p].items():
                    quantities[f"{self.names[p]}/{key}"] = value
        return quantities

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave; raises KeyError naming the first quantity that is missing."""
        for part in self.parts:
            keys = STATE[type(part).__name__]
            for p in part.params:
                values: dict[str, Any] = {}
                for key in keys:
                    value = state[f"{self.names[p]}/{key}"]
                    values[key] = value.to(p.device, torch.float32 if key == "step" else p.dtype).clone()
                part.state[p] = values


def check_rates(recipe: RunRecipe) -> None:
    """Raise RecipeError for a learning rate at which a decay, given or chosen, would take more than all of a weight."""
    t = recipe.train
    for rate in ("learning_rate", "muon_learning_rate") if t.optimizer == "muon" else ("learning_rate",):
        if getattr(t, rate) * t.weight_decay > 1:
            raise RecipeError(
                f"train.{rate} = {getattr(t, rate):g}: expected at most 1 / weight_decay = {1 / t.weight_decay:g}, so "
                "that weights keep their signs"
            )


def make_optimizer(recipe: RunRecipe, network: nn.Module, processes: Processes = SINGLE_PROCESS) -> Optimizer:
    """The recipe's optimiser over the network's parameters, of which each of `processes` may hold a part.

    While the weight decay is open, as in steps that are only timed, it is the least one that is chosen.
    """
    t = recipe.train
    return Optimizer(
        network,
        t.optimizer,
        learning_rate=t.learning_rate,
        muon_learning_rate=t.muon_learning_rate,
        betas=(t.beta_1, t.beta_2),
        eps=t.eps,
        weight_decay=WEIGHT_DECAYS[0] if t.weight_decay is None else t.weight_decay,
        muon_dtype=MUON_DTYPES.get(t.precision, torch.float32),
        processes=processes,
    )
