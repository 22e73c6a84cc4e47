"""Mutation operators for the code of arrays, which cosmic-ray lacks: swapped arguments, reversed lists, lost factors.

They make the mistakes that leave shapes as they were: e and p concatenated in the other order, a product without one of
its factors, two arguments in each other's place, a matrix that is not transposed.
"""

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator


class OfChildren(Operator):
    """An operator that puts other children in the place of a node's children."""

    def variants(self, node: Any) -> list[list]:
        """The lists of children, one for each mutant of this node."""
        raise NotImplementedError

    def mutation_positions(self, node: Any) -> Iterator[tuple]:
        """The start and the end of the node, once for each mutant."""
        for _ in self.variants(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """The node with the children of the mutant."""
        node.children = self.variants(node)[index]
        return node


class SwapArguments(OfChildren):
    """f(a, b) becomes f(b, a), if neither has a name or a star."""

    def variants(self, node: Any) -> list[list]:
        """The first two arguments swapped."""
        if node.type != "arglist" or node.parent.type != "trailer":
            return []
        a, comma, b, *rest = node.children
        return [] if "argument" in (a.type, b.type) else [[b, comma, a, *rest]]

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("f(a, b, c)", "f( b,a, c)"),)


class ReverseSequence(OfChildren):
    """[a, b, c] becomes [c, b, a], and (a, b, c) becomes (c, b, a)."""

    def variants(self, node: Any) -> list[list]:
        """The elements reversed, the commas where they were."""
        if node.type != "testlist_comp" or node.children[1].type == "sync_comp_for" or len(node.children) % 2 == 0:
            return []
        return [node.children[::-1]]

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("[a, b]", "[ b,a]"),)


class LoseOperand(OfChildren):
    """a * b + c becomes b + c, a + c, a * b, and so on: a sum or product without one of its operands."""

    def variants(self, node: Any) -> list[list]:
        """All but one operand, with the operator before it, or behind it for the first one of a sum or product."""
        if node.type not in ("term", "arith_expr"):
            return []
        old = node.children
        found = [old[: k - 1] + old[k + 1 :] for k in range(2, len(old), 2)]
        return [old[2:], *found] if old[1].value in ("*", "+", "@") else found

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("a * b", " b"), Example("a * b", "a", occurrence=1))


class LoseTranspose(OfChildren):
    """A.T becomes A."""

    def variants(self, node: Any) -> list[list]:
        """All but the first .T."""
        at = [k for k, x in enumerate(node.children) if x.type == "trailer" and x.get_code() == ".T"] if (
            node.type == "atom_expr"
        ) else []  # fmt: skip
        return [node.children[:k] + node.children[k + 1 :] for k in at]

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """What it does."""
        return (Example("X @ W.T", "X @ W"),)


ARRAY_OPERATORS = (SwapArguments, ReverseSequence, LoseOperand, LoseTranspose)
