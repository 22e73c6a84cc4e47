"""What a trace answers: decompositions, attributions, the lens, and why a head looks where it looks."""

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.lens.analysis.attribution import Attribution, Why
    from pellucid.lens.analysis.logit_lens import Lens
    from pellucid.lens.analysis.residual import Decomposition
    from pellucid.lens.show.figure import Figure
    from pellucid.lens.show.pages import PanelName


class Asking:
    """Methods of `Trace`, each one a function of this room."""

    def decompose(self, point: str | None = None, by: str = "component", **options: Any) -> "Decomposition":
        """The residual stream at a point as an exact sum (`pellucid.lens.analysis.residual.decompose`)."""
        from pellucid.lens.analysis.residual import decompose

        return decompose(self, point, by, **options)  # type: ignore[arg-type]

    def attribute(self, token: str | int, vs: str | int | None = None, **options: Any) -> "Attribution":
        """A logit, or the difference of two, as an exact sum (`pellucid.lens.analysis.attribution.attribute`)."""
        from pellucid.lens.analysis.attribution import attribute

        return attribute(self, token, vs, **options)  # type: ignore[arg-type]

    def lens(self, **options: Any) -> "Lens":
        """The logit lens at every point of the stream (`pellucid.lens.analysis.logit_lens.logit_lens`)."""
        from pellucid.lens.analysis.logit_lens import logit_lens

        return logit_lens(self, **options)  # type: ignore[arg-type]

    def why(self, layer: int, head: int, query: int = -1, **options: Any) -> "Why":
        """The scores of one query by what earlier parts wrote (`pellucid.lens.analysis.attribution.why`)."""
        from pellucid.lens.analysis.attribution import why

        return why(self, layer, head, query, **options)  # type: ignore[arg-type]

    def value_weighted(self, layer: int, scope: Literal["attn", "cross"] = "attn") -> Tensor:
        """A_ij |v_j W_O^T| [b, h, i, j] (`pellucid.lens.analysis.attribution.value_weighted`)."""
        from pellucid.lens.analysis.attribution import value_weighted

        return value_weighted(self, layer, scope)  # type: ignore[arg-type]

    def saliency(self, metric: Any, name: str = "embed") -> Tensor:
        """Gradient x input, summed over each position's coordinates [b, i] (Denil et al. 2014).

        `metric` is as for `gradient`; to first order, what it would lose if the
        tensor were 0 there.
        """
        slope = self.gradient(metric, name)[name]  # type: ignore[attr-defined]
        return (self[name] * slope).sum(-1)  # type: ignore[index]

    def show(self, panels: "Sequence[PanelName] | None" = None, **options: Any) -> "Figure":
        """This trace as one page of HTML, shown by itself in a notebook (`pellucid.lens.show.show_trace`)."""
        from pellucid.lens.show import show_trace

        given = {} if panels is None else {"panels": panels}
        return show_trace(self, **given, **options)  # type: ignore[arg-type]

    def as_transformer_lens(self) -> dict[str, Tensor]:
        """Everything in TransformerLens's names and shapes (`pellucid.lens.compatibility.as_transformer_lens`)."""
        from pellucid.lens.compatibility import as_transformer_lens

        return as_transformer_lens(self)  # type: ignore[arg-type]
