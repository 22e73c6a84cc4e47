"""The embedding table as a cloud of points: neighbours, norms, spectrum, and principal components."""

from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.lens.core.input_view import VocabularyView
from pellucid.lens.core.inputs import InputError
from pellucid.text.ids import IdTokenizer
from pellucid.text_model import Model


class Embeddings(VocabularyView):
    """The rows of W_E (`of = "embed"`), of W_U ("unembed") or of the learned positions ("positions").

    table   [n, m], which shares the network's memory; with d_embed W_E and W_U are [n, d_embed], without projections,
            and so are positions where embed_projection = sum
    """

    def __init__(self, model: Model, of: Literal["embed", "unembed", "positions"] = "embed"):
        network = model.network
        tables: dict[str, Any] = {"embed": network.embed.token.weight}
        if network.architecture.readout != "none":
            tables["unembed"] = network.unembed.weight
        elif of == "unembed":
            raise InputError("readout = none: this network has no table of the readout; ask for embed")
        if network.architecture.learns_positions and network.embed.position is not None:
            tables["positions"] = network.embed.position.weight
        if of not in tables:
            known = ", ".join(tables)
            raise InputError(f"of = {of!r}: this network has {known} (learned positions have a table too)")
        self.of, self._parameter = of, tables[of]
        self.tokenizer = model.tokenizer if of != "positions" else IdTokenizer(len(self._parameter))

    @property
    def table(self) -> Tensor:
        return self._parameter.detach()

    @property
    def n_ids(self) -> int:
        return len(self.table)

    def neighbours(
        self, token: str | int, k: int = 10, by: Literal["cosine", "product", "distance"] = "cosine"
    ) -> list[tuple[str, float]]:
        """The k rows nearest to a token's row, without itself, with their cosine, inner product or distance."""
        at = self.token_id(token)
        if by not in ("cosine", "product", "distance"):
            raise InputError(f"by = {by!r}: expected cosine, product or distance")
        table, x = self._exact(), self._exact()[at]
        if by == "distance":
            closeness = -(table - x).norm(dim=1)
        else:
            closeness = table @ x
            if by == "cosine":
                closeness = closeness / (table.norm(dim=1) * x.norm()).clamp(min=torch.finfo(table.dtype).tiny)
        closeness = closeness.index_fill(0, torch.tensor([at], device=table.device), -torch.inf)
        nearest = self.largest(closeness, min(k, len(table) - 1))
        return [(name, -value if by == "distance" else value) for name, value in nearest]

    def norms(self) -> Tensor:
        """The length of every row [n]."""
        return self._exact().norm(dim=1)

    def spectrum(self) -> Tensor:
        """Singular values of the table less its mean row, in descending order [min(n, m)]."""
        return torch.linalg.svdvals(self._centred())

    def plane(self, dimensions: int = 2) -> Tensor:
        """The rows projected on their first principal components [n, dimensions]."""
        centred = self._centred()
        _, _, Vh = torch.linalg.svd(centred.T @ centred)
        return centred @ Vh[:dimensions].T

    def _exact(self) -> Tensor:
        return self.table.to(torch.promote_types(self.table.dtype, torch.float32))

    def _centred(self) -> Tensor:
        return self._exact() - self._exact().mean(0)

    def __repr__(self) -> str:
        return f"Embeddings({self.of}, {self.table.size(0)} x {self.table.size(1)})"
