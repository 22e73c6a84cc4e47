"""Keeps and edits tensors while text is generated; positions are those of the text, with a cache or without."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor

from pellucid.edits import Edit, EditError
from pellucid.generate.readers import NO_TAPS, TapFactory
from pellucid.generate.text import Generated, GenerateOptions, generate
from pellucid.lens.core.inputs import InputError
from pellucid.lens.core.interventions import EditContext, functions, resolve
from pellucid.model import Recorder, Tap, Transformer
from pellucid.tensor_names import axes, select
from pellucid.text_model import Model


def taps_of(network: Transformer, edits: Sequence[Edit]) -> TapFactory:
    """What makes these edits at every step of a generation."""
    return GenerationTrace(network, edits) if edits else NO_TAPS


class GenerationTrace(TapFactory):
    """Edits every call of a generation, and keeps the tensors named in `keep`.

    A position is the index of a token in its text, counted from the first that was read; `row` is the number of the
    prompt. Raises EditError for edits that need the whole text at once: the mean over its batch or positions, and
    freezing at the values of a run without edits.
    """

    def __init__(self, network: Transformer, edits: Sequence[Edit] = (), keep: str | Sequence[str] = ()):
        a = network.architecture
        self.edits = resolve(edits, a)
        for edit in self.edits:
            if edit.over is not None or (edit.op == "freeze" and edit.value is None):
                what = f"mean over {edit.over}" if edit.over else "freeze"
                raise EditError(
                    f"{what} of {edit.name}: text that is being generated is not all there yet; give the value, "
                    "such as one that was measured or the tensor of a trace"
                )
        self.keep = select(keep, a) if keep else []
        self.device = network.embed.token.weight.device
        self.source: Tensor | None = None
        self.calls: list[tuple[EditContext, Recorder]] = []

    def of(
        self, prompts: Sequence[int], starts: Sequence[int], lengths: Sequence[int], width: int, n_queries: int
    ) -> Tap:
        columns = torch.arange(width, device=self.device)
        first = torch.tensor([width - n for n in lengths], device=self.device)[:, None]
        start = torch.tensor(list(starts), device=self.device)[:, None]
        keys = torch.where(columns >= first, columns - first + start, -1)
        rows = torch.tensor(list(prompts), device=self.device)
        source = None if self.source is None else self.source[rows]
        return self._tap(EditContext(keys[:, width - n_queries :], keys, source, rows))

    def of_sources(self, lengths: Sequence[int]) -> Tap:
        positions = torch.arange(max(lengths), device=self.device).expand(len(lengths), -1)
        self.source = torch.where(positions < torch.tensor(list(lengths), device=self.device)[:, None], positions, -1)
        rows = torch.arange(len(lengths), device=self.device)
        return self._tap(EditContext(self.source, self.source, self.source, rows))

    def edits_key(self) -> str:
        # tensors are kept of one generation alone
        return str(id(self)) if self.keep else self._hash_of_edits

    @cached_property
    def _hash_of_edits(self) -> str:
        """SHA-256 of the edits. Each sequence asks for it and keeps it, and a value may be as large as a request."""
        digest = hashlib.sha256()
        for edit in self.edits:
            value = edit.value
            is_tensor = isinstance(value, Tensor)
            digest.update(repr((replace(edit, value=None) if is_tensor else edit).to_dict()).encode())
            if is_tensor:
                digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _tap(self, frame: EditContext) -> Tap:
        recorder = Recorder(self.keep, functions(self.edits, frame))
        if self.keep:
            self.calls.append((frame, recorder))
        return recorder

    def tensors(self, prompt: int = 0) -> dict[str, Tensor]:
        """The kept tensors of one prompt's text, with its positions in order, in the shapes of a trace [1, ...].

        Scores are -inf and patterns 0 where a key came later or was no longer read. Entries that were not computed are
        nan, such as the logits of all but the last token of a prompt. Without a single step there are no tensors but an
        encoder's. The prompt must have one sample: the steps of several samples cannot be separated.
        """
        recorded = {name for _, recorder in self.calls for name in recorder.values}
        return {name: self._joined(name, prompt) for name in self.keep if name in recorded}

    def _joined(self, name: str, prompt: int) -> Tensor:
        letters = axes(name)
        pieces = []
        for frame, recorder in self.calls:
            here = (frame.rows == prompt).nonzero().flatten()
            if name in recorder.values and len(here):
                pieces.append((frame, int(here[0]), recorder.values[name][here[0]]))
        spans = [
            {k: frame.places(name, letter, x.size(k - 1))[row] for k, letter in enumerate(letters) if letter in "ij"}
            for frame, row, x in pieces
        ]
        first = pieces[0][2]
        shape = [
            max(int(span[k].max()) for span in spans) + 1 if k in spans[0] else first.size(k - 1)
            for k in range(1, len(letters))
        ]
        nothing = {"scores": -torch.inf, "pattern": 0.0}.get(name.rpartition(".")[2], torch.nan)
        joined = first.new_full(shape, nothing)
        for (_, _, x), span in zip(pieces, spans, strict=True):
            indices, source = [slice(None)] * joined.ndim, x
            for k, along in span.items():
                real = (along >= 0).nonzero().flatten()
                source = source.index_select(k - 1, real)
                shape_here = [1] * joined.ndim
                shape_here[k - 1] = -1
                indices[k - 1] = along[real]
            joined = _assign_along_axes(joined, indices, source)
        return joined[None]


def generate_traced(
    model: Model,
    prompt: str = "",
    *,
    keep: str | Sequence[str],
    edits: Sequence[Edit] = (),
    n: int = 1,
    **options: Unpack[GenerateOptions],
) -> tuple[Generated, dict[str, Tensor]]:
    """Generate one text (`pellucid.generate.text.generate`), and return its kept tensors (`GenerationTrace.tensors`).

    Raises InputError for beams and for several samples, which generate several texts.
    """
    if options.get("beams") or n != 1:
        raise InputError(
            "tensors are kept of one text, but beams or n generate several: generate first, then trace the result"
        )
    watch = GenerationTrace(model.network, edits, keep)
    generated = generate(model, prompt, taps=watch, **options)[0]
    return generated, watch.tensors()


def _assign_along_axes(into: Tensor, indices: list, values: Tensor) -> Tensor:
    """Write `values` at the given indices along some of the axes."""
    grids = [p if isinstance(p, Tensor) else torch.arange(n) for p, n in zip(indices, into.shape, strict=True)]
    into[torch.meshgrid(*(g.to(into.device) for g in grids), indexing="ij")] = values
    return into
