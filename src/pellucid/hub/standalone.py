"""A loader in one file, laid beside weights of our layout: the network's own source, joined, and twenty lines more."""

import ast
from importlib import resources
from pathlib import Path

#: in the order in which they need each other
MODULES = ("architecture", *(f"model.{name}" for name in ("shapes", "tap", "tables", "norm", "positions", "mask")))
MODULES += tuple(f"model.{name}" for name in ("mlp", "cache", "attention", "block", "embed", "transformer"))

HEAD = '''"""The model in this folder, without Pellucid: torch, safetensors and jaxtyping are all it needs.

    from loader import load
    network = load("FOLDER")                      # weights and architecture.json of this folder
    logits = network(torch.tensor([[1, 2, 3]]))   # [batch, pos, n_vocab]

tokenizer.json is read by tokenizers.Tokenizer.from_file. What follows is Pellucid's network as it is, its files
one after another: first what the architecture's words mean, then a class for each.
"""
'''

TAIL = '''

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


def loader() -> str:
    """The text of the loader."""
    imports: list[str] = []
    bodies = []
    for module in MODULES:
        text = (
            resources.files("pellucid")
            .joinpath(*module.split(".")[:-1], f"{module.split('.')[-1]}.py")
            .read_text(encoding="utf-8")
        )
        lines = text.splitlines()
        tree = ast.parse(text)
        for node in reversed(tree.body):
            foreign = isinstance(node, ast.Import | ast.ImportFrom)
            described = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if foreign and not (isinstance(node, ast.ImportFrom) and str(node.module).startswith("pellucid")):
                imports += [ast.unparse(node)]
            if foreign or (described and node is tree.body[0]):
                del lines[node.lineno - 1 : node.end_lineno]
        bodies.append(f"# {module.replace('.', '/')}.py: {(ast.get_docstring(tree) or '').splitlines()[0]}\n")
        bodies.append("\n".join(lines).strip("\n") + "\n\n\n")
    return HEAD + "\n" + "\n".join(sorted(set(imports))) + "\n\n\n" + "\n".join(bodies).rstrip() + "\n" + TAIL


def write_loader(folder: Path) -> Path:
    """loader.py in the folder."""
    path = folder / "loader.py"
    path.write_text(loader(), encoding="utf-8", newline="\n")
    return path
