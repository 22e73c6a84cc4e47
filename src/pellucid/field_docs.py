"""What the fields of a dataclass mean: the docstring below each, read for `--help-fields` and for the documentation."""

import ast
import inspect
import itertools
import textwrap


def field_docs(kind: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, inherited ones included; "" below which there is none."""
    docs: dict[str, str] = {}
    for base in [base for base in reversed(kind.__mro__) if hasattr(base, "__dataclass_fields__")]:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for pair in itertools.pairwise([*definition.body, ast.Pass()]):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = inspect.cleandoc(text)
                case ast.AnnAssign(target=ast.Name(id=name)), _:
                    docs[name] = ""
    return docs
