"""The page Circuits: heads, neurons, embeddings and positions from the weights alone, without any text.

Each function takes `Circuits` or `Embeddings` and returns what a panel shows, with `code`, the code that gives the
same numbers from `model`, and `not_shown`, what the panel leaves out. A panel that a network does not have has a
`reason` in its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import torch
from fastapi import Depends, FastAPI, Request
from torch import Tensor

from pellucid.lens.show.answers import json_number, numbers, with_arrays
from pellucid.lens.weights.circuit_weights import CircuitError
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.composition import Composition, CompositionKind
from pellucid.lens.weights.embeddings import Embeddings
from pellucid.lens.weights.head_weights import Head
from pellucid.lens.weights.positional import (
    distance_bias,
    position_similarity,
    rotary_angles,
    score_by_distance,
)
from pellucid.look.session import Session
from pellucid.look.stream import known_token, token_of
from pellucid.look.tokens import tokens_in_text
from pellucid.tensor_names import AttentionPart

Table = Literal["embed", "unembed", "positions"]
View = TypeVar("View", Circuits, Embeddings)

#: distances at which the scores of a head are shown
MOST_DISTANCES = 64
#: rows of positions that are shown
MOST_POSITIONS = 256
#: Python of the ids that `among` takes
LISTED_IN_PYTHON = "from pellucid.look.tokens import tokens_in_text\n\nlisted = tokens_in_text(model)\n"
RAW = (
    "Norms between the parts are left aside: the matrices are as trained, without the gains that scale what they read."
)


def circuits_code(circuits: Circuits) -> str:
    """The Python of these circuits."""
    options = {"part": circuits.part, "fold_norms": circuits.fold_norms, "centre": circuits.centre}
    defaults = {"part": "attn", "fold_norms": False, "centre": False}
    code = f"model.circuits({', '.join(f'{k}={v!r}' for k, v in options.items() if v != defaults[k])})"
    return code if circuits.listed is None else f"{code}.among(listed)"


def offset_argument(head: Head, offset: int | None) -> int | None:
    """The distance at which a head's QK circuit is read: `offset`, 1 unless given, where it is rotated; else None."""
    return (1 if offset is None else offset) if head.is_rotated else None


def heads_by_weights(circuits: Circuits, offset: int | None = None) -> dict[str, Any]:
    """Every head: its copying score, the norms of its circuits, and the singular values of W_OV and W_QK."""
    rows, a, reason = [], circuits.architecture, None
    try:
        copying = circuits.copying()
    except CircuitError as error:
        copying, reason = None, str(error)
    for layer in range(a.n_layers):
        for index in range(a.n_heads):
            head = circuits[layer, index]
            back = offset_argument(head, offset)
            ov, qk = head.ov.singular_values(), head.qk(back).singular_values()
            rows.append(
                {
                    "layer": layer,
                    "head": index,
                    "copying": None if copying is None else json_number(float(copying[layer, index])),
                    "ov_norm": json_number(float(ov.norm())),
                    "qk_norm": json_number(float(qk.norm())),
                    "ov": numbers(ov),
                    "qk": numbers(qk),
                    "offset": back,
                }
            )
    code = circuits_code(circuits)
    return {
        "part": circuits.part,
        "heads": rows,
        "copying_reason": reason,
        "rotated": a.rotates_somewhere and circuits.part != "cross",
        "code": f"circuits = {code}\ncopying = circuits.copying()" if reason is None else f"circuits = {code}",
        "not_shown": RAW,
    }


def head_circuits(circuits: Circuits, layer: int, index: int, offset: int | None = None, k: int = 6) -> dict[str, Any]:
    """One head: the spectra of its circuits, the eigenvalues of the full OV circuit, and singular directions."""
    head = circuits[layer, index]
    back = offset_argument(head, offset)
    code = f"head = {circuits_code(circuits)}[{layer}, {index}]"
    argument = "" if back is None else f"offset={back}"
    panel: dict[str, Any] = {
        "layer": layer,
        "head": index,
        "offset": back,
        "ov": numbers(head.ov.singular_values()),
        "qk": numbers(head.qk(back).singular_values()),
        "code": f"{code}\nov, qk = head.ov.singular_values(), head.qk({argument}).singular_values()",
        "not_shown": f"{RAW} The sign of a pair of singular vectors is arbitrary: both ends may be negated together.",
    }
    try:
        eigenvalues = head.full_ov().eigenvalues()
        panel |= {"eigenvalues": numbers(torch.view_as_real(eigenvalues)), "copying": json_number(head.copying)}
        panel["ov_directions"] = _directions(head, "ov", None, k)
    except CircuitError as error:
        panel["ov_reason"] = str(error)
    try:
        panel["qk_directions"] = _directions(head, "qk", back, k)
    except CircuitError as error:
        panel["qk_reason"] = str(error)
    return panel


def _directions(head: Head, of: Literal["ov", "qk"], offset: int | None, k: int) -> list[dict[str, Any]]:
    return [
        {"strength": direction.strength, "into": direction.into, "out": direction.out}
        for direction in head.directions(of, k, k, offset)
    ]


def look_up_token(
    circuits: Circuits, layer: int, index: int, token: str | int, offset: int | None = None, k: int = 12
) -> dict[str, Any]:
    """What a head promotes when it attends to a token, and which keys a query at this token looks for."""
    head, number = circuits[layer, index], known_token(circuits, token)
    back = offset_argument(head, offset)
    code = f"head = {circuits_code(circuits)}[{layer}, {index}]"
    panel: dict[str, Any] = {"token": {"id": number, "text": circuits.spell(number)}, "offset": back}
    argument = "" if back is None else f", offset={back}"
    try:
        panel["promotes"] = head.promotes(number, k)
        code += f"\npromotes = head.promotes({number}, k={k})"
    except CircuitError as error:
        panel["promotes_reason"] = str(error)
    try:
        panel["looks_for"] = head.looks_for(number, k, back)
        code += f"\nlooks_for = head.looks_for({number}, k={k}{argument})"
    except CircuitError as error:
        panel["looks_for_reason"] = str(error)
    not_shown = f"{RAW} The token stands for its embedding alone, as in the first block; later heads read more than it."
    return panel | {"code": code, "not_shown": not_shown}


def composition_graph(
    circuits: Circuits, kind: CompositionKind, offset: int | None = None
) -> tuple[dict[str, Any], Composition]:
    """The composition scores of all pairs of heads, with the mean and the spread of random heads of these shapes."""
    rotated = circuits.architecture.rotates_somewhere and kind != "V" and circuits.part != "cross"
    back = (1 if offset is None else offset) if rotated else None
    scores = circuits.compose(kind, back)
    argument = "" if back is None else f", offset={back}"
    panel = {
        "kind": kind,
        "layers": circuits.architecture.n_layers,
        "heads": circuits.architecture.n_heads,
        "offset": back,
        "baseline": scores.baseline,
        "spread": scores.spread,
        "top": [{"writer": writer, "reader": reader, "score": score} for writer, reader, score in scores.top(200)]
        if circuits.architecture.n_layers > 1
        else [],
        "code": f'composition = {circuits_code(circuits)}.compose("{kind}"{argument})',
        "not_shown": "The norm of a product says that one head can read what another writes, not that it does on a "
        f"text. {RAW}",
    }
    return panel, scores


def neuron_memory(circuits: Circuits, layer: int, index: int, k: int = 12) -> dict[str, Any]:
    """A neuron as a memory: the tokens that its key (and its gate) reads, and the logits that its value raises."""
    a = circuits.architecture
    if a.mlp.n_hidden == 0:
        return {"reason": "mlp.n_hidden = 0: these MLPs are affine maps without neurons."}
    if a.mlp.experts:
        return {
            "reason": f"mlp.experts = {a.mlp.experts}: each expert has neurons of its own, which are not shown here."
        }
    last = a.mlp.n_hidden - 1
    first, final = circuits.neuron(layer, index), circuits.neuron(layer, index, last)
    through: list[tuple[str, Any]] = [("key", lambda: first.reads(k))]
    if a.mlp.form == "gated":
        through.append(("gate", lambda: first.reads(k, "gate")))
    through.append(("value", lambda: final.writes(k)))
    calls = {"key": f"neuron.reads({k})", "gate": f'neuron.reads({k}, "gate")', "value": f"last.writes({k})"}
    code = circuits_code(circuits)
    lines = [f"neuron, last = {code}.neuron({layer}, {index}), {code}.neuron({layer}, {index}, {last})"]
    panel: dict[str, Any] = {"layer": layer, "neuron": index, "neurons": a.d_ff, "hidden": a.mlp.n_hidden}
    for name, read in through:
        try:
            panel[name] = read()
            lines.append(f"{name} = {calls[name]}")
        except CircuitError as error:
            panel[f"{name}_reason"] = str(error)
    panel["key_norm"], panel["value_norm"] = (
        json_number(float(first.key.norm())),
        json_number(float(final.value.norm())),
    )
    deep = " Hidden layers between the first and the last are not shown." if last else ""
    not_shown = (
        f"The key is compared with embeddings of single tokens, and later blocks read much more than those.{deep}"
    )
    return panel | {"code": "\n".join(lines), "not_shown": not_shown}


def embedding_neighbours(
    table: Embeddings, token: str | int, by: Literal["cosine", "product", "distance"] = "cosine", k: int = 16
) -> dict[str, Any]:
    """The nearest rows of a table to a token's row."""
    number = known_token(table, token)
    return {
        "token": {"id": number, "text": table.spell(number)},
        "neighbours": table.neighbours(number, k, by),
        "by": by,
        "code": f'neighbours = model.embeddings("{table.of}"){"" if table.listed is None else ".among(listed)"}'
        f'.neighbours({number}, k={k}, by="{by}")',
        "not_shown": "Rows are compared over all coordinates, whether or not a later block reads them.",
    }


def embedding_plane(table: Embeddings) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The rows on their first two principal components [n, 2], their lengths [n], and the table's spectrum."""
    spectrum = table.spectrum()
    share = spectrum.square() / spectrum.square().sum().clamp(min=torch.finfo(spectrum.dtype).tiny)
    panel = {
        "of": table.of,
        "rows": len(table.table),
        "texts": [table.spell(row) for row in range(len(table.table))],
        "spectrum": numbers(spectrum[:64]),
        "share": json_number(float(share[:2].sum())),
        "code": f'table = model.embeddings("{table.of}")\nplane, norms = table.plane(), table.norms()',
        "not_shown": f"Two of {table.table.size(1)} dimensions, which hold {100 * float(share[:2].sum()):.3g} % of the "
        "variance: points that are near here may be far apart.",
    }
    return panel, {"plane": table.plane(), "norms": table.norms()}


def positional_view(circuits: Circuits, layer: int = 0, distance: int = 1) -> dict[str, Any]:
    """How order enters: rows that are added, planes that are turned, numbers added to scores, or nothing."""
    a, kind = circuits.architecture, circuits.architecture.positions.kind
    base = {"kind": kind, "layer": layer, "n_ctx": a.n_ctx, "layers": a.n_layers}
    preamble = f"circuits = {circuits_code(circuits)}\n"
    if circuits.part == "cross":
        return base | {"reason": "Cross-attention has no positions of its own: its keys carry the encoder's."}
    if a.adds_positions:
        n = min(a.n_ctx, MOST_POSITIONS)
        code = "from pellucid.lens.weights.positional import position_similarity\n"
        shown = "The cosine of two rows; how a head reads them depends on its QK circuit."
        return base | {
            "view": "rows",
            "rows": n,
            "code": f"{code}{preamble}similarity = position_similarity(circuits, {n})",
            "not_shown": shown if n == a.n_ctx else f"{shown} The first {n} of {a.n_ctx} positions.",
        }
    if kind == "rotary":
        if not a.rotates(layer):
            return base | {"view": "angles", "reason": f"Block {layer} is one of those that rotate nothing."}
        angles = rotary_angles(circuits, layer, distance)
        code = "from pellucid.lens.weights.positional import rotary_angles\n"
        return base | {
            "view": "angles",
            "distance": distance,
            "angles": numbers(angles),
            "mean_cosine": json_number(float(angles.cos().mean())),
            "unrotated": a.d_head - a.d_rotary,
            "code": f"{code}{preamble}angles = rotary_angles(circuits, {layer}, {distance})",
            "not_shown": "By how much each plane turns, not how much of a query or key lies in it.",
        }
    if a.biases_scores:
        n = min(a.n_ctx, MOST_POSITIONS)
        code = "from pellucid.lens.weights.positional import distance_bias\n"
        return base | {
            "view": "bias",
            "bias": numbers(distance_bias(circuits, layer, n)),
            "code": f"{code}{preamble}bias = distance_bias(circuits, {layer}, {n})",
            "not_shown": "What distance adds to a score; the product of query and key may be larger.",
        }
    return base | {"reason": "positions.kind = none: nothing but the mask depends on positions."}


def rows_similarity(circuits: Circuits) -> Tensor:
    """The cosines between the first rows of learned or sinusoidal positions [n, n]."""
    return position_similarity(circuits, min(circuits.architecture.n_ctx, MOST_POSITIONS))


def scores_over_distance(
    circuits: Circuits, layer: int, index: int, query: str | int, key: str | int
) -> dict[str, Any]:
    """The score of a query at one token with a key at another, at every distance up to MOST_DISTANCES."""
    s, t = known_token(circuits, query), known_token(circuits, key)
    circuits.head(layer, index)
    n = min(circuits.architecture.n_ctx, MOST_DISTANCES)
    scores = score_by_distance(circuits, layer, index, s, t, n)
    return {
        "query": {"id": s, "text": circuits.spell(s)},
        "key": {"id": t, "text": circuits.spell(t)},
        "scores": numbers(scores),
        "code": "from pellucid.lens.weights.positional import score_by_distance\n"
        f"scores = score_by_distance({circuits_code(circuits)}, {layer}, {index}, {s}, {t}, {n})",
        "not_shown": f"{RAW} Biases of queries and keys are left out.",
    }


# Routes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WeightsQuery:
    """Which weights a request of this page is about; `fold` folds the norms' gains into them.

    every_token: lists hold tokens that do not occur in the training text, too.
    """

    part: AttentionPart = "attn"
    fold: bool = False
    checkpoint: str = ""
    every_token: bool = False


Asked = Annotated[WeightsQuery, Depends()]


def circuits_of(session: Session, asked: WeightsQuery) -> Circuits:
    """The circuits of a model at a checkpoint."""
    return Circuits(session.transformer(asked.checkpoint), part=asked.part, fold_norms=asked.fold)


def listing(session: Session, view: View, every_token: bool, panel: Callable[[View], dict[str, Any]]) -> dict[str, Any]:
    """A panel whose lists hold the training text's tokens; all, if they are asked for or there is no such text."""
    ids = None if every_token else text_ids(session)
    if ids is None:
        return panel(view)
    answer = panel(view.among(ids))
    return answer | {"code": LISTED_IN_PYTHON + answer["code"]} if "code" in answer else answer


def text_ids(session: Session) -> Tensor | None:
    """The ids that occur in the training text, found once; None where there is none, or an encoder reads a source."""
    model = session.transformer()
    if model.architecture.encoder is not None:
        return None
    if "text ids" not in session.results:
        try:
            session.results["text ids"] = tokens_in_text(model)
        except ValueError:  # from no run, or its text has changed
            session.results["text ids"] = None
    return session.results["text ids"]


def add_routes(app: FastAPI, session: Session) -> None:
    """The routes of the page Circuits."""

    async def of(request: Request, asked: WeightsQuery, panel: Callable[[Circuits], Any]) -> Any:
        return await session.compute(request, lambda: panel(circuits_of(session, asked)))

    async def lists(request: Request, asked: WeightsQuery, panel: Callable[[Circuits], dict[str, Any]]) -> Any:
        return await of(request, asked, lambda circuits: listing(session, circuits, asked.every_token, panel))

    @app.get("/api/w/listed")
    async def listed(request: Request) -> dict[str, Any]:
        ids = await session.compute(request, text_ids, session)
        return {"listed": None if ids is None else len(ids), "of": session.transformer().architecture.n_vocab}

    def plane_of(checkpoint: str, table: Table) -> tuple[dict[str, Any], dict[str, Tensor]]:
        def plane() -> tuple[dict[str, Any], dict[str, Tensor]]:
            return embedding_plane(Embeddings(session.transformer(checkpoint), table))

        return session.once(("plane", checkpoint, table), plane)

    @app.get("/api/w/heads")
    async def heads(request: Request, asked: Asked, offset: int | None = None) -> dict[str, Any]:
        def panel(circuits: Circuits) -> dict[str, Any]:
            return session.once(("circuits of heads", asked, offset), lambda: heads_by_weights(circuits, offset))

        return await of(request, asked, panel)

    @app.get("/api/w/head/{layer}/{head}")
    async def one_head(
        request: Request, asked: Asked, layer: int, head: int, offset: int | None = None
    ) -> dict[str, Any]:
        return await lists(request, asked, lambda circuits: head_circuits(circuits, layer, head, offset))

    @app.get("/api/w/head/{layer}/{head}/token")
    async def token_of_head(
        request: Request, asked: Asked, layer: int, head: int, token: str, offset: int | None = None
    ) -> dict[str, Any]:
        return await lists(request, asked, lambda c: look_up_token(c, layer, head, token_of(token), offset))

    @app.get("/api/w/head/{layer}/{head}/distances")
    async def distances(request: Request, asked: Asked, layer: int, head: int, query: str, key: str) -> dict[str, Any]:
        return await of(request, asked, lambda c: scores_over_distance(c, layer, head, token_of(query), token_of(key)))

    @app.get("/api/w/compose/{kind}")
    async def composition(
        request: Request, asked: Asked, kind: CompositionKind, offset: int | None = None
    ) -> dict[str, Any]:
        def panel(circuits: Circuits) -> dict[str, Any]:
            return session.once(("compose", asked, kind, offset), lambda: composition_graph(circuits, kind, offset)[0])

        return await of(request, asked, panel)

    @app.get("/api/w/neuron/{layer}/{neuron}")
    async def neuron(request: Request, asked: Asked, layer: int, neuron: int) -> dict[str, Any]:
        return await lists(request, asked, lambda circuits: neuron_memory(circuits, layer, neuron))

    @app.get("/api/w/embed/{of}/neighbours")
    async def neighbours(
        request: Request,
        of: Table,
        token: str,
        by: Literal["cosine", "product", "distance"] = "cosine",
        checkpoint: str = "",
        every_token: bool = False,
    ) -> dict[str, Any]:
        def panel() -> dict[str, Any]:
            table, every = Embeddings(session.transformer(checkpoint), of), every_token or of == "positions"
            return listing(session, table, every, lambda rows: embedding_neighbours(rows, token_of(token), by))

        return await session.compute(request, panel)

    @app.get("/api/w/embed/{of}")
    async def embedding(request: Request, of: Table, checkpoint: str = "") -> dict[str, Any]:
        return await session.compute(request, lambda: plane_of(checkpoint, of)[0])

    @app.get("/api/w/embed/{of}/plane")
    async def plane(request: Request, of: Table, checkpoint: str = "") -> dict[str, Any]:
        return await session.compute(request, lambda: with_arrays({"plane": plane_of(checkpoint, of)[1]["plane"]}))

    @app.get("/api/w/positions")
    async def positions(request: Request, asked: Asked, layer: int = 0, distance: int = 1) -> dict[str, Any]:
        return await of(request, asked, lambda circuits: positional_view(circuits, layer, distance))

    @app.get("/api/w/positions/rows")
    async def rows(request: Request, asked: Asked) -> dict[str, Any]:
        return await of(request, asked, lambda circuits: with_arrays({"rows": rows_similarity(circuits)}))
