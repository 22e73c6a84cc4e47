"""A neuron of an MLP as a memory: a key that is compared with the stream, and a value that is added to it."""

from typing import Literal

from torch import Tensor

from pellucid.lens.weights.circuit_weights import CircuitError, CircuitWeights
from pellucid.lens.weights.factored_matrix import exact


class Neuron:
    """m(x) = sum_n f(x . key_n + b_n) value_n + b: neuron n fires on its key and adds its value   (Geva et al. 2021)

    In a gated MLP the activation is f(x . gate_n + c_n) (x . key_n + b_n). x is the stream after the block's norm.
    `hidden` is the number of the hidden layer in a deeper MLP: the first has keys, the last has values. Raises
    CircuitError for neurons that do not exist.
    """

    def __init__(self, circuits: CircuitWeights, layer: int, index: int, hidden: int = 0):
        a = circuits.architecture
        if circuits.part == "cross":
            raise CircuitError("part = cross has no MLP: use part = attn or encoder")
        if a.mlp.experts:
            raise CircuitError(
                f"mlp.experts = {a.mlp.experts}: the neurons of each expert are numbered by themselves; "
                f"their weights are blocks.{layer}.mlp.experts.K.up.0.weight, .gate.weight and .down.weight"
            )
        if not (0 <= layer < a.n_layers and 0 <= index < a.d_ff and 0 <= hidden < a.mlp.n_hidden):
            raise CircuitError(
                f"neuron {index} of hidden layer {hidden} of block {layer}: there are {a.n_layers} blocks with "
                f"{a.mlp.n_hidden} hidden layers of {a.d_ff} neurons, numbered from 0"
            )
        self.circuits, self.layer, self.index, self.hidden = circuits, layer, index, hidden
        self._prefix = f"{'encoder.' if circuits.part == 'encoder' else ''}blocks.{layer}.mlp."

    @property
    def key(self) -> Tensor:
        """Its input weights [m]: a row of W_in. Raises CircuitError unless it is in the first hidden layer."""
        if self.hidden:
            raise CircuitError(
                f"hidden layer {self.hidden} reads neurons, not the stream: only hidden layer 0 has keys"
            )
        return self.circuits.weights[f"{self._prefix}up.0.weight"][self.index]

    @property
    def gate(self) -> Tensor:
        """The weights of its gate [m], in a gated MLP."""
        if self.circuits.architecture.mlp.form != "gated":
            raise CircuitError("mlp.form = plain has no gate")
        return self.circuits.weights[f"{self._prefix}gate.weight"][self.index]

    @property
    def value(self) -> Tensor:
        """Its output weights [m]: a column of W_out. Raises CircuitError unless it is in the last hidden layer."""
        last = self.circuits.architecture.mlp.n_hidden - 1
        if self.hidden != last:
            raise CircuitError(f"hidden layer {self.hidden} is read by neurons: only hidden layer {last} has values")
        return self.circuits.weights[f"{self._prefix}down.weight"][:, self.index]

    def reads(self, k: int = 10, through: Literal["key", "gate"] = "key") -> list[tuple[str, float]]:
        """The tokens whose embeddings have the largest product with its key, or with its gate."""
        if through not in ("key", "gate"):
            raise CircuitError(f"through = {through!r}: expected key or gate")
        vector = self.key if through == "key" else self.gate
        return self._through(self.circuits.read_E, vector, k)

    def writes(self, k: int = 10) -> list[tuple[str, float]]:
        """The tokens whose logits it raises most, per unit of activation, without the final norm."""
        return self._through(self.circuits.W_U, self.circuits.written(self.value), k)

    def _through(self, table: Tensor, vector: Tensor, k: int) -> list[tuple[str, float]]:
        return self.circuits.largest(exact(table) @ exact(vector), k)

    def __repr__(self) -> str:
        return f"Neuron({self.layer}, {self.index})"
