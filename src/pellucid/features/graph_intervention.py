"""A graph tested on its model: features are set to other values, and what changes is compared with the prediction.

Predicted is what the edges say: the change of a feature, as a share of its activation, times the edges out of it, and
on through the features that these reach, each of which is taken to stay active. Measured is the same in the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.features.dictionary import Site
from pellucid.features.graph_nodes import GraphNode
from pellucid.features.replacement import ENCODED, ReplacementModel, replace_tensor
from pellucid.lens.core.forward import ForwardPass, frozen_network
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.model import Recorder
from pellucid.model.tap import Edit

#: what keeps its value while features are set
#: nothing              the model as it is
#: attention and norms  patterns and scales; MLPs compute what they make of the change
#: everything           MLPs' outputs too, but for what a skip of their transcoders adds: one step along the edges
FrozenParts = Literal["nothing", "attention and norms", "everything"]


@dataclass(frozen=True, repr=False)
class GraphIntervention(PrintsAsTable):
    """What setting features changes: pre-activations of the features of later layers, and logits.

    nodes      the features that are set, to `factor` x their activations
    targets    whose change is predicted and measured: features first, then logits
    predicted  by the graph [target]
    measured   in the model [target]
    """

    nodes: list[GraphNode]
    factor: float
    frozen: FrozenParts
    targets: list[GraphNode]
    predicted: Float[Tensor, " target"]
    measured: Float[Tensor, " target"]

    @property
    def correlation(self) -> float:
        """Pearson's correlation of predicted and measured changes; nan where either is the same for all targets."""
        return correlation_of(self.predicted, self.measured)

    def of_logits(self) -> list[tuple[str, float, float]]:
        """The token, the predicted and the measured change of each logit, the likeliest token first."""
        changes = zip(self.targets, self.predicted.tolist(), self.measured.tolist(), strict=True)
        return [(node.text, predicted, measured) for node, predicted, measured in changes if node.kind == "logit"]

    def printed(self) -> PrintedTable:
        """The targets, those with the largest measured changes first."""
        rows = list(zip(map(str, self.targets), self.predicted.tolist(), self.measured.tolist(), strict=True))
        rows.sort(key=lambda row: -abs(row[2]))
        which = str(self.nodes[0]) if len(self.nodes) == 1 else f"{len(self.nodes)} features"
        heading = (
            f"{which} at {self.factor:g} x the activation, {self.frozen} frozen: correlation of predicted and measured "
            f"changes {self.correlation:.3f} over {len(rows):,} features and logits"
        )
        return PrintedTable(heading, ("target", "predicted", "measured"), rows)


@dataclass(frozen=True, repr=False)
class GraphValidation(PrintsAsTable):
    """What the likeliest logit loses or gains when each feature of a graph is set by itself.

    logit      of the token
    nodes      the features, each set to `factor` x its activation
    predicted  change of the logit by the graph [feature]
    measured   in the model [feature]
    """

    logit: GraphNode
    factor: float
    frozen: FrozenParts
    nodes: list[GraphNode]
    predicted: Float[Tensor, " feature"]
    measured: Float[Tensor, " feature"]

    @property
    def correlation(self) -> float:
        """Pearson's correlation of predicted and measured changes; nan where either is the same for all features."""
        return correlation_of(self.predicted, self.measured)

    def printed(self) -> PrintedTable:
        """The features, those with the largest measured changes first."""
        rows = list(zip(map(str, self.nodes), self.predicted.tolist(), self.measured.tolist(), strict=True))
        rows.sort(key=lambda row: -abs(row[2]))
        heading = (
            f"each of {len(rows):,} features at {self.factor:g} x its activation, {self.frozen} frozen: correlation of "
            f"predicted and measured changes of the {self.logit} {self.correlation:.3f}"
        )
        return PrintedTable(heading, ("feature", "predicted", "measured"), rows)


def correlation_of(x: Tensor, y: Tensor) -> float:
    """Pearson's; nan where either is constant."""
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x.norm() * y.norm()))


def validate_in(
    linear: ReplacementModel,
    nodes: Sequence[GraphNode],
    edges: Float[Tensor, "target source"],
    factor: float,
    frozen: FrozenParts,
    subtract_mean: bool,
) -> GraphValidation:
    """Set each feature by itself to factor x its activation, and compare the change of the likeliest logit."""
    features = [n for n, node in enumerate(nodes) if node.kind == "feature"]
    logit = max((n for n, node in enumerate(nodes) if node.kind == "logit"), key=lambda n: nodes[n].probability or 0)
    through_features, predicted, measured = frozen != "everything", [], []
    for n in features:
        predicted.append(predicted_changes(nodes, edges, [n], factor, through_features)[logit])
        measured += measured_changes(linear, [nodes[n]], [nodes[logit]], factor, frozen, subtract_mean)
    set_nodes, size = [nodes[n] for n in features], (len(features),)
    changes = [torch.stack(x).to(edges) if x else edges.new_zeros(size) for x in (predicted, measured)]
    return GraphValidation(nodes[logit], factor, frozen, set_nodes, *changes)


def intervene_in(
    linear: ReplacementModel,
    nodes: Sequence[GraphNode],
    edges: Float[Tensor, "target source"],
    numbers: Sequence[int],
    factor: float,
    frozen: FrozenParts,
    subtract_mean: bool,
) -> GraphIntervention:
    """Set the features that have these `numbers` among `nodes` to factor x their activations, and compare."""
    chosen = sorted(set(numbers))
    first = min(nodes[n].layer or 0 for n in chosen)
    targets = [
        n
        for n, node in enumerate(nodes)
        if node.kind == "logit" or (node.kind == "feature" and (node.layer or 0) > first and n not in chosen)
    ]
    predicted = predicted_changes(nodes, edges, chosen, factor, through_features=frozen != "everything")[targets]
    set_nodes, target_nodes = [nodes[n] for n in chosen], [nodes[n] for n in targets]
    measured = measured_changes(linear, set_nodes, target_nodes, factor, frozen, subtract_mean)
    return GraphIntervention(set_nodes, factor, frozen, target_nodes, predicted, measured.to(predicted))


def predicted_changes(
    nodes: Sequence[GraphNode],
    edges: Float[Tensor, "target source"],
    chosen: Sequence[int],
    factor: float,
    through_features: bool,
) -> Float[Tensor, " node"]:
    """The change of every node's value where the chosen features are set; along single edges, or through features."""
    values = edges.new_tensor([node.value or 0.0 for node in nodes])
    shares = torch.zeros_like(values)
    shares[list(chosen)] = factor - 1
    if not through_features:
        return edges @ shares
    is_set = torch.zeros(len(nodes), dtype=torch.bool, device=edges.device)
    is_set[list(chosen)] = True
    layers = [node.layer if node.kind == "feature" else None for node in nodes]
    for layer in sorted({layer for layer in layers if layer is not None}):
        of_layer = torch.tensor([other == layer for other in layers], device=edges.device) & ~is_set & (values != 0)
        shares[of_layer] = (edges[of_layer] @ shares) / values[of_layer]
    return edges @ shares


def measured_changes(
    linear: ReplacementModel,
    set_nodes: Sequence[GraphNode],
    targets: Sequence[GraphNode],
    factor: float,
    frozen: FrozenParts,
    subtract_mean: bool,
) -> Float[Tensor, " target"]:
    """The change of the targets' pre-activations and logits in the model where features are set."""
    t = linear.recording
    with frozen_network(t.network):
        if frozen == "everything":
            reads, read_out = linear.outputs(_with_set_features(linear, set_nodes, factor))
        else:
            reads, read_out = _run_with_set_features(linear, set_nodes, factor, frozen == "attention and norms")
        changes = []
        for node in targets:
            if node.kind == "feature":
                layer, pos, index, _ = node.of_feature
                W_enc = linear.dictionaries[layer].W_enc
                changes.append((reads[layer] - linear.reads[layer])[0, pos] @ W_enc[:, index])
                continue
            pos, token = node.of_logit
            if frozen == "nothing":
                after, before = (linear.logits(x, [token], pos, subtract_mean) for x in (read_out, t.read_out))
                changes.append((after - before)[0])
            else:
                directions, _ = linear.logit_directions([token], pos, subtract_mean)
                changes.append(directions[0] @ (read_out - t.read_out)[0, pos])
    return torch.stack(changes)


def _with_set_features(linear: ReplacementModel, nodes: Sequence[GraphNode], factor: float) -> dict[str, Tensor]:
    """The sources of the replacement model, with some features at other values."""
    sources = {name: x.clone() for name, x in linear.sources.items()}
    for node in nodes:
        layer, pos, index, activation = node.of_feature
        row = linear.dictionaries[layer].W_dec[index]
        sources[linear.sites[layer].writes][0, pos] += (factor - 1) * activation * row
    return sources


def _run_with_set_features(
    linear: ReplacementModel, nodes: Sequence[GraphNode], factor: float, freezes: bool
) -> tuple[list[Tensor], Tensor]:
    """What each MLP and the readout of the model read where features are set, patterns and scales frozen or not.

    Each MLP's output is moved along a feature's decoder row until the feature, as it is in this run, has its value.
    """
    t, recorder = linear.recording, Recorder([site.reads for site in linear.sites])
    edits: dict[str, Edit] = {}
    if freezes:
        edits = {name: partial(replace_tensor, value) for name, value in linear.frozen.items()}
    for site in linear.sites:
        of_layer = [node for node in nodes if node.layer == site.layer]

        def mlp_out(x: Tensor, site: Site = site, of_layer: Sequence[GraphNode] = of_layer) -> Tensor:
            dictionary, changed = linear.dictionaries[site.layer], x.clone()
            activations = dictionary.encode(recorder.values[site.reads])[0]
            for node in of_layer:
                _, pos, index, activation = node.of_feature
                missing = factor * activation - activations[pos, index]
                changed[0, pos] += missing * dictionary.W_dec[index]
            return changed

        if of_layer:
            edits[site.writes] = mlp_out
    recorder.edits = {name: (edit,) for name, edit in edits.items()}
    read_out = ForwardPass(t.module(""), t.inputs, linear.sources.get(ENCODED)).whole(recorder)
    return [recorder.values[site.reads] for site in linear.sites], read_out
