"""Path patching: the effect of one head on another along the direct path only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from pellucid import edits as change
from pellucid.edits import Edit
from pellucid.lens.analysis.metrics import Metric, PreparedMetric
from pellucid.lens.analysis.patching import check_alike, read_pair
from pellucid.lens.core.inputs import InputError, InputOptions, Texts
from pellucid.lens.core.recording import Recording
from pellucid.model import Transformer
from pellucid.tensor_names import axes, names
from pellucid.text.tokenizers.base import Tokenizer

#: a tensor of one block, and one of its heads or None for the whole tensor
End = tuple[str, int | None]


@dataclass(frozen=True)
class PathEffect:
    """The metric of the clean run, of the corrupt run, and of the clean run with the corrupt values along the path."""

    metric: str
    clean: float
    corrupt: float
    patched: float

    @property
    def effect(self) -> float:
        return self.patched - self.clean


def path_patch(
    network: Transformer,
    tokenizer: Tokenizer | None,
    clean: Texts,
    corrupt: Texts,
    metric: Metric,
    *,
    sender: End,
    receivers: Sequence[End],
    mlps: Literal["free", "frozen"] = "free",
    corrupt_source: Texts | None = None,
    **options: Unpack[InputOptions],
) -> PathEffect:
    """Give the receivers, and nothing else, the sender's output of the corrupt run.

    sender     such as ("blocks.3.attn.z", 5), or ("blocks.2.mlp_out", None)
    receivers  such as ("blocks.7.attn.q", 1); an empty list means the logits
    mlps       free: the path may pass through MLPs; frozen: it may not. Every attention is frozen at the clean run
    source, corrupt_source   the encoder's input in the clean run, and in the corrupt run where it differs

    Wang et al. 2022, "Interpretability in the Wild", section 3.1 and appendix B; Goldowsky-Dill et al. 2023. Raises
    InputError, EditError, and KeyError for tensors that do not exist.
    """
    if mlps not in ("free", "frozen"):
        raise InputError(f"mlps = {mlps!r}: expected free or frozen")
    one, other = read_pair(network, tokenizer, clean, corrupt, corrupt_source, **options)
    good, bad = Recording(network, tokenizer, one), Recording(network, tokenizer, other)
    name = good.full_name(sender[0])
    check_alike(good, bad, [name])
    held = (".attn.z", ".cross.z", ".mlp_out") if mlps == "frozen" else (".attn.z", ".cross.z")
    edits = [change.freeze(n, good) for n in names(network.architecture) if n.endswith(held)]
    edits += [_at(change.resample, name, bad[name], sender[1])]
    ends = [good.full_name(receiver) for receiver, _ in receivers]
    heard = Recording(network, tokenizer, one, ends, edits)
    if receivers:
        told = [_at(change.set_to, n, heard[n], head) for n, (_, head) in zip(ends, receivers, strict=True)]
        heard = Recording(network, tokenizer, one, (), told)
    prepared = PreparedMetric(metric, good)  # one function of logits for all three: KL compares each with the clean run
    measured = [float(prepared(t.logits.detach()).mean()) for t in (good, bad, heard)]
    return PathEffect(metric.name, *measured)


def _at(make: Any, name: str, value: Any, head: int | None) -> Edit:
    """An edit of one head, whether the tensor has query heads or key heads."""
    where = {} if head is None else {"kv_head" if "g" in axes(name) else "head": head}
    return make(name, value, **where)
