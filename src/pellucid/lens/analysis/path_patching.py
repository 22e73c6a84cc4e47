"""Path patching: the effect of one head on another along the direct path only."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.edits import Edit
from pellucid.lens.analysis.metrics import Metric, PreparedMetric
from pellucid.lens.analysis.patching import check_alike, name_of_metric, read_pair
from pellucid.lens.core.inputs import InputError, InputOptions, Texts
from pellucid.lens.core.recording import Recording
from pellucid.lens.show.printed_table import PrintedTable, PrintsAsTable
from pellucid.tensor_names import axes, computation_order, names, stack_of
from pellucid.text_model import Model

#: a tensor of one block, and one of its heads or None for the whole tensor
End = tuple[str, int | None]

#: the tensors of a cross-attention before its z that an encoder's output reaches
READS_SOURCE = (".cross.k", ".cross.v", ".cross.scores", ".cross.pattern")


@dataclass(frozen=True, repr=False)
class PathEffect(PrintsAsTable):
    """The metric of the clean run, of the corrupt run, and of the clean run with the corrupt values along the path.

    metric   its name; of a loss, also the text whose tokens are scored, which is the clean one in all three runs
    """

    metric: str
    clean: float
    corrupt: float
    patched: float

    def printed(self) -> PrintedTable:
        """The three runs."""
        rows = [("clean", self.clean), ("corrupt", self.corrupt), ("patched along the path", self.patched)]
        return PrintedTable(f"effect of the path on {self.metric}: {self.effect:.3f}", ("run", "metric"), rows)

    @property
    def effect(self) -> float:
        return self.patched - self.clean


def path_patch(
    model: Model,
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

    A metric that compares with the tokens or the logits of a run (`loss`, `kl` without `to`) takes those of the clean
    run, which is the one that is changed.

    Wang et al. 2022, "Interpretability in the Wild", section 3.1 and appendix B; Goldowsky-Dill et al. 2023. Raises
    InputError where a receiver is computed before the sender or a frozen tensor closes every path, EditError, and
    KeyError for tensors that do not exist.
    """
    if mlps not in ("free", "frozen"):
        raise InputError(f"mlps = {mlps!r}: expected free or frozen")
    for end in (sender, *receivers):
        if isinstance(end, str) or len(end) != 2:
            raise InputError(
                f"{end!r} is no end of a path: expected a tensor and one of its heads, or None for all of it, such as "
                "('blocks.7.attn.q', 1); no receivers at all mean the logits"
            )
    one, other = read_pair(model, clean, corrupt, corrupt_source, **options)
    good, bad = Recording(model, one), Recording(model, other)
    name, ends = good.full_name(sender[0]), [good.full_name(receiver) for receiver, _ in receivers]
    _check_open(name, ends, model.architecture, mlps)
    check_alike(good, bad, [name])
    held = (".attn.z", ".cross.z", ".mlp_out") if mlps == "frozen" else (".attn.z", ".cross.z")
    edits = [change.freeze(n, good) for n in names(model.architecture) if n.endswith(held)]
    edits += [_head_edit(change.resample, name, bad[name], sender[1])]
    patched = Recording(model, one, ends, edits)
    if receivers:
        receiver_edits = [
            _head_edit(change.set_to, n, patched[n], head) for n, (_, head) in zip(ends, receivers, strict=True)
        ]
        patched = Recording(model, one, (), receiver_edits)
    # one function of logits for all three: KL compares each with the clean run, a loss scores the clean text's tokens
    prepared = PreparedMetric(metric, good)
    measured = [float(prepared(t.logits.detach()).mean()) for t in (good, bad, patched)]
    return PathEffect(name_of_metric(metric, "the clean text"), *measured)


def _check_open(sender: str, ends: list[str], a: Architecture, mlps: str) -> None:
    """Raise InputError where a receiver comes before the sender, or frozen tensors close the paths between them."""
    order = {name: n for n, name in enumerate(computation_order(a))}
    for end in ends:
        if order.get(end, math.inf) < order.get(sender, 0):
            raise InputError(
                f"the receiver {end} is computed before the sender {sender}, so that nothing reaches it: name one "
                "that is computed after it"
            )
    stops = _frozen_behind(sender, a, mlps)
    if stops and not any({*stops} & {*_frozen_behind(end, a, mlps)} for end in ends):
        free = ", or say mlps='free'" if any(stop.endswith(".mlp_out") for stop in stops) else ""
        raise InputError(
            f"the sender {sender} acts through {' and '.join(stops)} alone, frozen at the clean run, so its effect "
            f"would be 0: name {stops[0]} as the sender, or a receiver that {stops[0]} is computed from{free}"
        )
    crossed = any(end.startswith("encoder.") or end.endswith(READS_SOURCE) for end in ends)
    if sender.startswith("encoder.") and not crossed:
        raise InputError(
            f"the sender {sender} acts on the decoder through blocks.*.cross.z alone, frozen at the clean run, so its "
            "effect would be 0: name keys and values of the cross-attention as receivers, such as blocks.0.cross.k"
        )
    for end in ends:
        stop = _frozen_before(end, mlps)
        if stop and stop != _frozen_before(sender, mlps):
            scope = stop.removesuffix(".z")
            remedy = "say mlps='free'" if scope == stop else f"name {scope}.q, {scope}.k or {scope}.v"
            being = "is" if end == stop else f"follows from {stop}, which is"
            raise InputError(
                f"the receiver {end} {being} frozen at the clean run, so that nothing reaches it: {remedy}"
            )


def _frozen_behind(name: str, a: Architecture, mlps: str) -> list[str]:
    """The frozen tensors of its own block through which all that a tensor does must pass; [] where a path is open."""
    block, inner = _block_and_inner(name)
    part, a = inner.split(".")[0], stack_of(name, a)
    stops: tuple[str, ...] = ()
    if part in ("attn", "cross"):
        stops = () if inner.endswith((".z", ".result")) else (f"{part}.z",)
    elif part in ("mlp", "norm_2_out"):
        stops = ("mlp_out",)
    elif a.block != "post":  # where a norm before a sublayer is not the stream itself
        stops = {"norm_1": ("attn.z",), "norm_cross": ("cross.z",), "norm_2": ("mlp_out",)}.get(part, ())
        stops += ("mlp_out",) if stops and a.block == "shared" else ()
    is_open = "mlp_out" in stops and mlps == "free"
    return [] if is_open else [f"{block}.{stop}" for stop in stops]


def _frozen_before(name: str, mlps: str) -> str:
    """The frozen tensor of its own block that alone decides a tensor, which may be itself; "" where there is none."""
    block, inner = _block_and_inner(name)
    if inner.startswith(("attn.z", "attn.result", "norm_1_out", "attn_out")):
        return f"{block}.attn.z"
    if inner.startswith(("cross.z", "cross.result", "cross_out")):
        return f"{block}.cross.z"
    return name if inner == "mlp_out" and mlps == "frozen" else ""


def _block_and_inner(name: str) -> tuple[str, str]:
    """`blocks.3.attn.z` as `blocks.3` and `attn.z`; "" and the name itself outside the blocks."""
    match = re.match(r"^((?:encoder\.)?blocks\.\d+)\.(.+)$", name)
    return (match[1], match[2]) if match else ("", name)


def _head_edit(make: Any, name: str, value: Any, head: int | None) -> Edit:
    """An edit of one head, whether the tensor has query heads or key heads."""
    where = {} if head is None else {"kv_head" if "g" in axes(name) else "head": head}
    return make(name, value, **where)
