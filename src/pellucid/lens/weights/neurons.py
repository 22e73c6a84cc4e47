"""A neuron of an MLP as a memory: a key that is matched with the stream, a value that is added to it."""

from typing import Literal

from torch import Tensor

from pellucid.lens.weights.circuit_weights import CircuitError, CircuitWeights
from pellucid.lens.weights.factored_matrix import exact


class Neuron:
    """m(x) = sum_n f(x . key_n + b_n) value_n + b: neuron n fires on its key and adds its value   (Geva et al. 2021)

    S4 has the same reading. In a gated MLP the activation is f(x . gate_n + c_n) (x . key_n + b_n): what is matched
    first is the gate. x is behind the block's norm. `hidden` counts the hidden layers of a deeper MLP: keys belong to
    its first, values to its last. Raises CircuitError for neurons that there are not.
    """

    def __init__(self, circuits: CircuitWeights, layer: int, index: int, hidden: int = 0):
        a = circuits.architecture
        if circuits.part == "cross":
            raise CircuitError("part = cross holds attention alone: neurons are of part = attn or encoder")
        if not (0 <= layer < a.n_layers and 0 <= index < a.d_ff and 0 <= hidden < a.mlp.n_hidden):
            raise CircuitError(
                f"neuron {index} of hidden layer {hidden} of block {layer}: there are {a.n_layers} blocks with "
                f"{a.mlp.n_hidden} hidden layers of {a.d_ff} neurons, numbered from 0"
            )
        self.circuits, self.layer, self.index, self.hidden = circuits, layer, index, hidden
        self._prefix = f"{'encoder.' if circuits.part == 'encoder' else ''}blocks.{layer}.mlp."

    @property
    def key(self) -> Tensor:
        """What it reads [m]: a row of W_in. CircuitError behind another hidden layer, whose neurons it reads."""
        if self.hidden:
            raise CircuitError(f"hidden layer {self.hidden} reads neurons, not the stream: keys are of hidden layer 0")
        return self.circuits.weights[f"{self._prefix}up.0.weight"][self.index]

    @property
    def gate(self) -> Tensor:
        """What opens it [m], in a gated MLP."""
        if self.circuits.architecture.mlp.form != "gated":
            raise CircuitError("mlp.form = plain has no gate")
        return self.circuits.weights[f"{self._prefix}gate.weight"][self.index]

    @property
    def value(self) -> Tensor:
        """What it writes [m]: a column of W_out. CircuitError before another hidden layer, which reads it."""
        last = self.circuits.architecture.mlp.n_hidden - 1
        if self.hidden != last:
            raise CircuitError(f"hidden layer {self.hidden} is read by neurons: values are of hidden layer {last}")
        return self.circuits.weights[f"{self._prefix}down.weight"][:, self.index]

    def reads(self, k: int = 10, through: Literal["key", "gate"] = "key") -> list[tuple[str, float]]:
        """The tokens whose embeddings have the largest product with its key, or with its gate."""
        if through not in ("key", "gate"):
            raise CircuitError(f"through = {through!r}: say key or gate")
        vector = self.key if through == "key" else self.gate
        return self._through(self.circuits.read_E, vector, k)

    def writes(self, k: int = 10) -> list[tuple[str, float]]:
        """The tokens whose logits it raises most as it fires, per unit of activation, the final norm aside."""
        return self._through(self.circuits.W_U, self.value, k)

    def _through(self, table: Tensor, vector: Tensor, k: int) -> list[tuple[str, float]]:
        return self.circuits.largest(exact(table) @ exact(vector), k)

    def __repr__(self) -> str:
        return f"Neuron({self.layer}, {self.index})"
