"""What a trace answers: decompositions, attributions, the lens, and why a head looks where it looks."""

from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.lens.attribution import Attribution, Why
    from pellucid.lens.logit_lens import Lens
    from pellucid.lens.show.figure import Figure
    from pellucid.lens.show.pages import PanelName
    from pellucid.lens.stream import Parts


class Asking:
    """Methods of `Trace`, each one a function of this room."""

    def decompose(self, point: str | None = None, by: str = "component", **options: Any) -> "Parts":
        """The residual stream at a point as an exact sum (`pellucid.lens.stream.decompose`)."""
        from pellucid.lens.stream import decompose

        return decompose(self, point, by, **options)  # type: ignore[arg-type]

    def attribute(self, token: str | int, vs: str | int | None = None, **options: Any) -> "Attribution":
        """A logit, or the difference of two, as an exact sum (`pellucid.lens.attribution.attribute`)."""
        from pellucid.lens.attribution import attribute

        return attribute(self, token, vs, **options)  # type: ignore[arg-type]

    def lens(self, **options: Any) -> "Lens":
        """The logit lens at every point of the stream (`pellucid.lens.logit_lens.logit_lens`)."""
        from pellucid.lens.logit_lens import logit_lens

        return logit_lens(self, **options)  # type: ignore[arg-type]

    def why(self, layer: int, head: int, query: int = -1, **options: Any) -> "Why":
        """The scores of one query by what earlier parts wrote (`pellucid.lens.attribution.why`)."""
        from pellucid.lens.attribution import why

        return why(self, layer, head, query, **options)  # type: ignore[arg-type]

    def value_weighted(self, layer: int, scope: Literal["attn", "cross"] = "attn") -> Tensor:
        """A_ij |v_j W_O^T| [b, h, i, j] (`pellucid.lens.attribution.value_weighted`)."""
        from pellucid.lens.attribution import value_weighted

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
