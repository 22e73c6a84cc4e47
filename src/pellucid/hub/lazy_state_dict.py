"""A model of another project under our names, a tensor at a time: for files larger than memory."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from pellucid.hub.families import _pairs, _shapes, _spelled, _split, _take_twins, architecture_of
from pellucid.hub.tables import Family


class LazyStateDict(Mapping[str, Tensor]):
    """Their tensors under our names, each made when it is looked up.

    What `each_to_ours` refuses is not found here; let it read the files first.
    """

    def __init__(self, state: Mapping[str, Tensor], config: Mapping[str, Any], family: Family):
        self.a = architecture_of(config, family)
        self.shapes = _shapes(self.a)
        pairs = list(_pairs(family, self.shapes, self.a))
        expected = {theirs for _, theirs, _ in pairs}
        self.left = _spelled(state, family, expected)
        self.twins = _take_twins(self.left, family, self.a, expected)
        self.where = {name: (pair, i) for pair in pairs for i, name in enumerate(pair[0])}

    def __getitem__(self, name: str) -> Tensor:
        (ours, theirs, row), i = self.where[name]
        tensor = self.left[theirs] if theirs in self.left else self.twins[theirs]
        return _split(tensor, [self.shapes[one][0] for one in ours], row, self.a)[i]

    def __iter__(self) -> Iterator[str]:
        return iter(self.where)

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, name: object) -> bool:
        return name in self.where
