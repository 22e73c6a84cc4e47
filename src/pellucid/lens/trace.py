"""The trace of one forward pass: its tensors by name, and the analyses of them."""

from collections.abc import Callable, Sequence
from typing import Literal, Unpack

from torch import Tensor

from pellucid.edits import Edit
from pellucid.lens.analysis.attribution import Attribution, Why, attribute, value_weighted, why
from pellucid.lens.analysis.gradients import gradient, saliency
from pellucid.lens.analysis.logit_lens import Lens, logit_lens
from pellucid.lens.analysis.metrics import Metric
from pellucid.lens.analysis.residual import By, Decomposition, decompose
from pellucid.lens.compatibility import as_transformer_lens
from pellucid.lens.core.inputs import InputOptions, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.figure import Figure, PanelName
from pellucid.lens.show.pages import TRACE_PANELS, show_trace
from pellucid.model import Transformer
from pellucid.tensor_names import AttentionPart
from pellucid.text.tokenizers.base import Tokenizer


class Trace(Recording):
    """The tensors of one forward pass, and the analyses of them. `trace[name]` is a tensor, with a batch axis first.

        t["blocks.5.attn.pattern"]   t[5].attn.pattern   t["blocks.5.attn.hook_pattern"]

    are one tensor: by its name, by its block, and by TransformerLens's classic name.
    The inputs of all blocks are kept, and so is every tensor named in `keep`. Any other tensor is recomputed from them
    when it is read, which costs the time of one block. A name that the architecture lacks raises KeyError with the
    reason.

    What is read is a copy, and nothing that is done later changes it: where the weights have changed since, whatever
    needs them raises TraceError. With grad=True kept tensors are those of the graph, which raise it once they were
    changed in place.

    inputs   the input of the pass; `tokens` shows it
    edits    the edits, each resolved to one full name
    values   the tensors that are kept, by full name
    """

    def decompose(
        self, point: str | None = None, by: By = "component", *, pos: int | None = None, row: int = 0
    ) -> Decomposition:
        """The residual stream at a point as an exact sum (`pellucid.lens.analysis.residual.decompose`)."""
        return decompose(self, point, by, pos=pos, row=row)

    def attribute(
        self, token: str | int, vs: str | int | None = None, *, pos: int = -1, row: int = 0, by: By = "component"
    ) -> Attribution:
        """A logit, or the difference of two, as an exact sum (`pellucid.lens.analysis.attribution.attribute`)."""
        return attribute(self, token, vs, pos=pos, row=row, by=by)

    def lens(self, *, mid: bool = True, target: str | int | None = None, k: int = 5) -> Lens:
        """The logit lens at every point of the stream (`pellucid.lens.analysis.logit_lens.logit_lens`)."""
        return logit_lens(self, mid=mid, target=target, k=k)

    def why(
        self,
        layer: int,
        head: int,
        query: int = -1,
        *,
        row: int = 0,
        side: Literal["key", "query", "pair"] = "key",
        by: Literal["component", "head"] = "component",
        part: AttentionPart = "attn",
    ) -> Why:
        """The scores of one query by what earlier parts wrote (`pellucid.lens.analysis.attribution.why`)."""
        return why(self, layer, head, query, row=row, side=side, by=by, part=part)

    def value_weighted(self, layer: int, scope: AttentionPart = "attn") -> Tensor:
        """A_ij |v_j W_O^T| [b, h, i, j] (`pellucid.lens.analysis.attribution.value_weighted`)."""
        return value_weighted(self, layer, scope)

    def gradient(self, metric: Metric | Callable[[Tensor], Tensor], patterns: str | Sequence[str]) -> dict[str, Tensor]:
        """d metric(logits) / d tensor, by full name (`pellucid.lens.analysis.gradients.gradient`)."""
        return gradient(self, metric, patterns)

    def saliency(self, metric: Metric | Callable[[Tensor], Tensor], name: str = "embed") -> Tensor:
        """Gradient x input of each position [b, i] (`pellucid.lens.analysis.gradients.saliency`)."""
        return saliency(self, metric, name)

    def show(self, panels: Sequence[PanelName] = TRACE_PANELS, *, row: int = 0, title: str = "") -> Figure:
        """This trace as one page of HTML, which a notebook displays (`pellucid.lens.show.pages.show_trace`)."""
        return show_trace(self, panels, row=row, title=title)

    def as_transformer_lens(self) -> dict[str, Tensor]:
        """Every tensor in TransformerLens's names and shapes (`pellucid.lens.compatibility.as_transformer_lens`)."""
        return as_transformer_lens(self)


def trace(
    network: Transformer,
    tokenizer: Tokenizer | None,
    texts: Texts,
    *,
    keep: str | Sequence[str] = (),
    edits: Sequence[Edit] = (),
    grad: bool = False,
    **options: Unpack[InputOptions],
) -> Trace:
    """Run the network on texts or ids and return every tensor of the pass.

    texts   a text, a list of texts, ids, rows of ids, or what `generate` returned
    keep    names (`*` stands for anything) of the tensors to hold in memory besides the block inputs
    edits   changes (`pellucid.edits`), made in order
    grad    whether the tensors that are kept stay in the autograd graph; others are read from `detached()`
    bos, source, segments, prefix   see `pellucid.lens.core.inputs.read_inputs`; `tokens` shows everything that is fed

    Keeping tensors changes no bit of the logits. Raises KeyError with the reason for names that the architecture
    lacks, InputError for texts that it cannot read, EditError for edits that do not fit.
    """
    return Trace(network, tokenizer, read_inputs(network, tokenizer, texts, **options), keep, edits, grad)
