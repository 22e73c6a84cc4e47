"""Write the network's own source, so that a model opens without Pellucid.

`loader.py` goes next to weights of our layout; `configuration_pellucid.py` and `modeling_pellucid.py` are the code for
transformers' auto classes. All three are joined from the modules of `pellucid` that compute the logits. Shapes become
comments, because these files do without jaxtyping.
"""

import ast
import functools
import re
from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path

#: the modules that describe the architecture, in order of dependence
OPTIONS = ("option_values", "architecture")
#: the modules that compute the logits, in order of dependence
NETWORK = ("shapes", "tap", "tables", "dropout", "norm", "positions", "mask", "mlp", "cache", "kernels", "attention")
NETWORK = tuple(f"model.{name}" for name in (*NETWORK, "block", "embed", "transformer"))
#: transformers has caches of its own
OWN_CACHE = ("Cache", "CacheLayer", "CachedSource")
CONFIGURATION, MODELING = "configuration_pellucid", "modeling_pellucid"

LOADER_DOCSTRING = '''"""The model in this folder, without Pellucid: it needs torch and safetensors.

    from loader import load
    network = load("FOLDER")                      # weights and architecture.json of this folder
    logits = network(torch.tensor([[1, 2, 3]]))   # [batch, pos, n_vocab]

tokenizer.json is read by tokenizers.Tokenizer.from_file. What follows is Pellucid's network as it is, its files
one after another: first what the architecture's options mean, then a class for each.
"""
'''

LOAD = '''

def load(folder):
    """The network of a folder, in eval mode and in the precision of its files."""
    from pathlib import Path

    from safetensors.torch import load_file

    values = json.loads((Path(folder) / "architecture.json").read_text(encoding="utf-8"))
    network, state = Transformer(Architecture.from_dict(values)), load_file(Path(folder) / "model.safetensors")
    network = network.to(next(iter(state.values())).dtype)
    own = dict(network.named_parameters())
    assert own.keys() == state.keys(), sorted(own.keys() ^ state.keys())
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])
    return network.eval()
'''


@functools.cache
def loader() -> str:
    return LOADER_DOCSTRING + _join((*OPTIONS, *NETWORK)) + LOAD


@functools.cache
def code_files() -> dict[str, str]:
    """The text of each code file that transformers needs, by its name without .py."""
    room = "hub.transformers_code"
    modules = (*NETWORK, f"{room}.inputs_pellucid", f"{room}.{MODELING}")
    modeling = _join(modules, OWN_CACHE, imported=(*OPTIONS, f"{room}.{CONFIGURATION}"))
    configuration = _join((*OPTIONS, f"{room}.{CONFIGURATION}"))
    return {
        name: f'"""{_docstring(f"{room}.{name}")}\n"""\n{text}'
        for name, text in ((CONFIGURATION, configuration), (MODELING, modeling))
    }


def write_loader(folder: Path) -> Path:
    """Write loader.py into the folder."""
    path = folder / "loader.py"
    path.write_text(loader(), encoding="utf-8", newline="\n")
    return path


def _join(modules: Sequence[str], leave_out: Collection[str] = (), imported: Collection[str] = ()) -> str:
    """Join the modules' sources below the imports from other packages that they use.

    leave_out  names of classes to omit
    imported   modules of ours whose names are imported from configuration_pellucid.py instead
    """
    sources = {name: _untyped(_module_source(name)) for name in modules}
    body = "\n\n\n".join(_body(name, text, leave_out) for name, text in sources.items()) + "\n"
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    imports: dict[str, set[str]] = {}
    for text in sources.values():
        for node in ast.parse(text).body:
            for module, name, shown in _imports(node):
                if module in {f"pellucid.{one}" for one in imported}:
                    module = f".{CONFIGURATION}"
                if shown.split(" as ")[-1] in used and not module.startswith("pellucid"):
                    imports.setdefault(module if name else "", set()).add(shown)
    return "\n" + _import_lines(imports) + "\n\n\n" + body


def _imports(node: ast.stmt) -> list[tuple[str, bool, str]]:
    """The imports of a statement as (module, whether a name is imported from it, the imported text)."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return []
    shown = [alias.name + (f" as {alias.asname}" if alias.asname else "") for alias in node.names]
    if isinstance(node, ast.Import):
        return [(name, False, name) for name in shown]
    return [(str(node.module), True, name) for name in shown]


def _import_lines(imports: dict[str, set[str]]) -> str:
    plain = [f"import {name}" for name in sorted(imports.get("", ()))]
    named = [(module, sorted(names)) for module, names in imports.items() if module]
    named.sort(key=lambda one: (one[0].startswith("."), one[0]))
    return "\n".join(plain + [f"from {module} import {', '.join(names)}" for module, names in named])


def _body(module: str, text: str, leave_out: Collection[str]) -> str:
    """A module's source below its docstring and imports, under a comment that names the module."""
    lines, tree = text.splitlines(), ast.parse(text)
    for i, node in reversed(list(enumerate(tree.body))):
        described = not i and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        unwanted = isinstance(node, ast.ClassDef) and node.name in leave_out
        if described or unwanted or isinstance(node, ast.Import | ast.ImportFrom):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            del lines[first - 1 : node.end_lineno]
    body = re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines).strip("\n"))
    if module.startswith("hub."):
        return body
    return f"# {module.replace('.', '/')}.py: {_docstring(module).splitlines()[0]}\n\n{body}"


def _untyped(text: str) -> str:
    """The source without jaxtyping: annotated tensors become Tensor, and axes of a named shape become a comment."""
    annotated = r'(?:Float|Int|Bool)\[Tensor, "([^"]*)"\]'
    text = re.sub(rf"^(\w+) = {annotated}(?:  # (.*))?$", _named_shape, text, flags=re.MULTILINE)
    return re.sub(annotated, "Tensor", text)


def _named_shape(match: re.Match[str]) -> str:
    name, axes, comment = match.groups()
    return f"{name} = Tensor  # [{axes}]" + (f", {comment}" if comment else "")


def _module_source(module: str) -> str:
    *rooms, name = module.split(".")
    return resources.files("pellucid").joinpath(*rooms, f"{name}.py").read_text(encoding="utf-8")


def _docstring(module: str) -> str:
    return ast.get_docstring(ast.parse(_module_source(module))) or ""
