"""The trace of one forward pass: its tensors by name, and the analyses of them."""

from collections.abc import Sequence
from typing import Unpack

from pellucid.edits import Edit
from pellucid.lens.analysis.attribution import attribute, value_weighted, why
from pellucid.lens.analysis.gradients import gradient, saliency
from pellucid.lens.analysis.logit_lens import logit_lens
from pellucid.lens.analysis.residual import decompose
from pellucid.lens.compatibility import as_transformer_lens
from pellucid.lens.core.inputs import InputOptions, Texts, read_inputs
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.pages import show_trace
from pellucid.option_values import suggest_keywords
from pellucid.text_model import Model


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

    decompose = decompose
    attribute = attribute
    lens = logit_lens
    why = why
    value_weighted = value_weighted
    gradient = gradient
    saliency = saliency
    show = show_trace
    as_transformer_lens = as_transformer_lens


@suggest_keywords(InputOptions.__annotations__)
def trace(
    model: Model,
    texts: Texts,
    *,
    keep: str | Sequence[str] = (),
    edits: Sequence[Edit] = (),
    grad: bool = False,
    **options: Unpack[InputOptions],
) -> Trace:
    """Run the model on texts or ids and return every tensor of the pass.

    texts   a text, a list of texts, ids, rows of ids, or what `generate` returned
    keep    names (`*` stands for anything) of the tensors to hold in memory besides the block inputs
    edits   changes (`pellucid.edits`), made in order
    grad    whether the tensors that are kept stay in the autograd graph; others are read from `detached()`
    bos, source, segments, prefix   see `pellucid.lens.core.inputs.read_inputs`; `tokens` shows everything that is fed

    Keeping tensors changes no bit of the logits. Raises KeyError with the reason for names that the architecture
    lacks, InputError for texts that it cannot read, EditError for edits that do not fit.
    """
    return Trace(model, read_inputs(model, texts, **options), keep, edits, grad)
