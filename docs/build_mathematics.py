"""Writes docs/mathematics.md out of the sources: `make docs`.

Read are the list of items, the list of errata, the markers of every test and the docstrings of the reference, all as
text; the options of an architecture and the table of the names of tensors are imported.
"""

import ast
import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.field_docs import field_docs
from pellucid.option_values import field_hints

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mathematics.md"
TESTS = ROOT / "tests"
REFERENCE = ROOT / "src" / "pellucid" / "reference"

SOURCES = {
    "S0": ("Spencer Becker-Kahn", "Notes on the mathematical structure of GPT LLM architectures"),
    "S1": ("Garrett Goon", "Decoder-Only Transformers"),
    "S2": ("anonymous", "notes written while reading about transformers, thanking Aryan Bhatt for a correction"),
    "S3": ("AP and MF", "Basic transformer architecture (slides)"),
    "S4": ("Edgar Dobriban", "Stat 9911, Principles of AI: LLMs. Large Language Model Architectures 01 (slides)"),
    "X": ("", "across the sources"),
}
#: the modules of the reference in the order in which one reads them, and what each is about
ROOMS = {
    "tokens": "Text as symbols, documents and chunks",
    "bpe": "Byte pair encoding",
    "embedding": "Tokens to vectors and back, positions",
    "positions": "The rows and numbers of each positional scheme",
    "feedforward": "Feed-forward networks",
    "functions": "Softmax, activations, normalisation, dropout",
    "masks": "Masks",
    "attention": "Attention",
    "blocks": "Blocks",
    "layers": "The layers of a block, for every option",
    "transformer": "Whole transformers",
    "weights": "The parameters",
    "circuits": "Reading a transformer",
    "learning": "Probabilities, losses, learning",
    "predictors": "Predictors before the transformer",
    "generation": "Generation",
    "images": "Images as tokens",
    "tape": "Derivatives",
    "tap": "Named tensors",
}
#: functions of the reference that any test may need and none is about
INCIDENTAL = {"random_weights", "real", "constant"}
CLASSES = {"W": "wrong", "T": "typing error", "A": "ambiguous", "X": "contradiction", "L": "lost", "O": "over-general"}
POLICIES = {
    "correct": "the corrected form alone is implemented",
    "variant": "the corrected form is the default, the other has a name",
    "doc": "said here",
}

INTRODUCTION = """\
# The mathematics: equation, source, function, test, result

This page is written by `make docs` (`docs/build_mathematics.py`) out of the docstrings of `src/pellucid/reference`, the
markers of the tests, `tests/conformance/items.toml` and `tests/conformance/errata.toml`; a test fails when it is stale.

Pellucid implements what five texts on transformers describe. Every definition, equation, claim and system in them is an
item with a number. `src/pellucid/reference` holds the definitions, one short NumPy function in float64 for each
equation; the engine (`src/pellucid/model`) is held to it by tests, every named tensor and every gradient to 1e-10.
What the texts print wrongly, leave open or contradict each other about is among the errata below, each with the
counterexample that decides it where there is one.
"""

NOTATION = r"""
## One notation

**Rows.** A position is a row: the stream is $X \in \mathbb{R}^{n \times d}$, and a stored matrix
$W \in \mathbb{R}^{\text{out} \times \text{in}}$ acts as $X W^\top$, which is $(\mathrm{Id} \otimes W) X$ in S0. Where a
source multiplies row vectors by $W$ from the right (S1, and S4 with its primes), our $W$ is that source's $W^\top$.
Positions and tokens are counted from 0, also where a source counts from 1. Masks are boolean, true = may be read.

| meaning | Pellucid | S0 | S1 | S2 | S3 | S4 |
|---|---|---|---|---|---|---|
| size of the vocabulary | `n_vocab` | n_vocab | V | - | n_V | \|V\|, n_tokens |
| longest context | `n_ctx` | n_ctx, n | S | C | n_C | T, j |
| width of the stream | `d_model` (m) | d | D | E | d_M | d |
| blocks | `n_layers` | bold n | - | - | n_L | - |
| heads of queries | `n_heads` (h) | n_heads, \|H\| | A | index j | n_H | - |
| heads of keys and values | `n_kv_heads` (g) | - | footnote 9 | - | - | - |
| width of a head | `d_head` (d) | d_h | D/A | d_k | d_k, d_V | d, d/2 for two heads |
| width of the MLP | `d_ff` (f) | n_1 | - | - | d_FFN | d_m |
| embedding | `W_E` [n_vocab, m] | its transpose, d x n_vocab | (V, D) | - | n_V x d_M | - |
| unembedding | `W_U` [n_vocab, m] | n_vocab x d | head | - | U | W_out |
| positions added | `W_P` [n_ctx, m] | P | p_sd | e_k | PosEmbed | Gamma |
| queries and keys | `W_QK` = W_Q^T W_K | W_qk | - | Y, with 1/sqrt(d_k) | - | - |
| values and output | `W_OV` = W_O W_V | W_ov | - | S | - | - |
| stream | x, `resid_pre` ... | X | z_bsd | x0, x1, x2 | x^(l) | E |
| attention | `scores`, `pattern` (A) | A^h(X) | w_bss'a | A | Score, Weight | Z, A |
| norm's parameters | `gain`, `bias` | - | gamma, beta | - | gamma, beta | c_0 the small constant |
| activation | `activation` (f) | sigma | - | - | phi | sigma |
| one-hot | `one_hot` | sigma | - | - | Ind | - |

One letter for each axis, in every shape below: b batch, i query position, j key position, h head, g head of keys and
values, m d_model, d d_head, f d_ff, v vocabulary.
"""


NAMES = """\
## The names of tensors

What `trace[NAME]` gives ([looking inside](looking-inside.md#names)). Axes: e experts, s the width of a shared expert,
the others as above; with embed_projection = sum, m is d_embed before `embed_projected`. Names of an encoder's tensors
begin with `encoder.`; those of its decoder may begin with `decoder.`. The hidden layers of a deeper MLP are numbered:
`mlp.pre.0`. Where the source texts print one symbol for different tensors, the table's is the corrected one:
[E-01](#e-01), [E-06](#e-06), [E-21](#e-21), [E-22](#e-22), [E-51](#e-51), [E-62](#e-62).
"""


# Reading ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Marked:
    """A test that shows items or errata."""

    path: Path
    name: str
    items: tuple[str, ...]
    errata: tuple[str, ...]
    functions: frozenset[tuple[str, str]] = field(default_factory=frozenset)  # (module, function) of the reference
    slow: bool = False
    data: bool = False

    @property
    def id(self) -> str:
        return f"{self.path.relative_to(TESTS).as_posix()}::{self.name}"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def items() -> dict[str, dict[str, str]]:
    """Item -> what it says and what it waits for."""
    listed = tomllib.loads((TESTS / "conformance" / "items.toml").read_text(encoding="utf-8"))
    return {name: item for section in listed.values() for name, item in section.items()}


@cache
def errata() -> dict[str, dict[str, Any]]:
    return tomllib.loads((TESTS / "conformance" / "errata.toml").read_text(encoding="utf-8"))


@cache
def defined(module: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """The public functions and classes of a module of the reference, in their order."""
    nodes = tree(REFERENCE / f"{module}.py").body
    return {n.name: n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")}


def marks(node: ast.FunctionDef, kind: str) -> tuple[str, ...]:
    """The arguments of a test's `pytest.mark.<kind>`."""
    calls = [m for m in node.decorator_list if isinstance(m, ast.Call) and ast.unparse(m.func) == f"pytest.mark.{kind}"]
    return tuple(ast.literal_eval(argument) for call in calls for argument in call.args)


def find_tests(body: Iterable[ast.stmt], inherited: str = "") -> Iterator[tuple[ast.FunctionDef, str]]:
    """Every test of a module or class, with the source of all the markers that hold for it."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            own = [
                ast.unparse(n.value) for n in node.body if isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n)
            ]
            yield from find_tests(node.body, " ".join([inherited, *own]))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, " ".join([inherited, *map(ast.unparse, node.decorator_list)])


@cache
def marked_tests() -> tuple[Marked, ...]:
    """Every test with an item or an erratum, by file and line."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        module = tree(path)
        constants = {ast.unparse(n.targets[0]): ast.unparse(n.value) for n in module.body if isinstance(n, ast.Assign)}
        for node, markers in find_tests(module.body, constants.get("pytestmark", "")):
            shown, wrong = marks(node, "item"), marks(node, "erratum")
            if shown or wrong:
                named = " ".join([markers, *(constants.get(word, "") for word in re.findall(r"\w+", markers))])
                used = frozenset(used_by(path, node.name, node))
                asks = needs_data(path, {a.arg for a in node.args.args})
                found.append(Marked(path, node.name, shown, wrong, used, "mark.slow" in named, asks))
    return tuple(found)


def needs_data(path: Path, fixtures: set[str]) -> bool:
    """Whether one of a test's fixtures asks for data that is not shipped."""
    nodes = {n.name: n for n in tree(path).body if isinstance(n, ast.FunctionDef)}
    while inner := {a.arg for name in fixtures if name in nodes for a in nodes[name].args.args} - fixtures:
        fixtures = fixtures | inner
    return "needs_data" in fixtures


@cache
def names_of(path: Path) -> dict[str, tuple[str, str]]:
    """Local name -> (module, function) of the reference, (module, "") for the module itself, or (file, helper)."""
    found: dict[str, tuple[str, str]] = {}
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_"):
            found[node.name] = (str(path), node.name)
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for alias in node.names:
            local = alias.asname or alias.name
            helper = [p for p in (path.parent, TESTS) if (p / f"{node.module}.py").exists()]
            if node.module == "pellucid.reference":
                holder = next((m for m in ROOMS if alias.name in defined(m)), "")
                found[local] = (alias.name, "") if alias.name in ROOMS else (holder, alias.name)
            elif node.module.startswith("pellucid.reference."):
                found[local] = (node.module.rpartition(".")[2], alias.name)
            elif helper:
                found[local] = (str(helper[0] / f"{node.module}.py"), alias.name)
    return found


def used_by(path: Path, name: str, node: ast.AST, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """The functions of the reference that a test uses, itself or through helpers beside it."""
    names = names_of(path)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            module, function = names.get(inner.value.id, ("", ""))[0], inner.attr
        elif isinstance(inner, ast.Name):
            module, function = names.get(inner.id, ("", ""))
        else:
            continue
        if module in ROOMS and isinstance(defined(module).get(function), ast.FunctionDef):
            if function not in INCIDENTAL:
                yield module, function
        elif module.endswith(".py") and function != name and f"{module}:{function}" not in seen:
            helpers = [n for n in tree(Path(module)).body if isinstance(n, ast.FunctionDef) and n.name == function]
            for helper in helpers:
                yield from used_by(Path(module), function, helper, seen | {f"{module}:{function}"})


# Docstrings ---------------------------------------------------------------------------------------

PLACE = (
    r'"[^"]+"(?:(?: and | to |, )"[^"]+")*|Remark \d[\d.]*\d(?:\(\d\))?|slides? \d+(?:(?:, | and | to )\d+)*'
    r"|footnotes? \d+|Fig\. \d+|figure|Introduction|\[\d+\]|\(?\d[\d.]*\d\)?(?:(?:, | to | and )\(\d[\d.]*\d\))*"
)
CITATION = re.compile(rf"\bS[0-4]\b(?: (?:{PLACE})(?: and footnote \d+)?)?|[A-Z]\w+(?: and [A-Z]\w+| et al\.) \d{{4}}")


def cited_errata(text: str) -> list[str]:
    """The errata named in a text, E-09 to E-13 being five of them."""
    found = {int(n) for n in re.findall(r"\bE-(\d\d)\b", text)}
    for first, last in re.findall(r"\bE-(\d\d) to E-(\d\d)\b", text):
        found |= set(range(int(first), int(last) + 1))
    return [f"E-{n:02}" for n in sorted(found)]


def definition(text: str) -> tuple[str, str]:
    """The equation or sentence that a docstring begins with, and the shapes beside it."""
    first = " ".join(line.strip() for line in text.split("\n\n")[0].splitlines())
    parts = [part.strip() for part in re.split(r" {3,}", text.split("\n\n")[0].replace("\n", "   "))]
    if len(parts) == 1:
        return first, ""
    words = [p for p in parts if not p.startswith(("S0", "S1", "S2", "S3", "S4")) and "et al." not in p]
    shapes = [p for p in words[1:] if re.search(r"\[.*\]|any shape", p)]
    rest = [p for p in words[1:] if p not in shapes and not p.startswith(("(S", "Erratum", "Errata", "pellucid."))]
    return " ".join([words[0], *rest]), re.sub(r"\.( Erratum .*)?$", "", " ".join(shapes))


def citations(text: str) -> list[str]:
    """Every place of a source that a docstring names, once, in its order."""
    flat = " ".join(text.split())
    found = dict.fromkeys(match.group() for match in CITATION.finditer(flat))
    return [c for c in found if not any(c != other and other.startswith(f"{c} ") for other in found)]


# Writing ------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text for a cell of a table, with what Markdown would read escaped; what stands in backticks is code."""
    parts = re.split(r"`([^`]*)`", " ".join(text.split()))
    return "".join(code(p) if n % 2 else re.sub(r"([\\*_<>|\[\]~$])", r"\\\1", p) for n, p in enumerate(parts))


def code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`" if text else ""


def link_of_function(module: str, name: str) -> str:
    return f"[`{name}`](../src/pellucid/reference/{module}.py)"


def link_of_test(test: Marked) -> str:
    """The name of a test as the sentence that it is."""
    sentence = test.name.removeprefix("test_").replace("_", " ")
    room, file = test.path.parent.name, test.path.stem.removeprefix("test_")
    notes = [] if room == "conformance" else [file if room in ("tests", file) else f"{room}/{file}"]
    notes += ["engine"] * file.startswith("engine") + ["slow"] * test.slow + ["with data"] * test.data
    link = f"[{sentence}](../{test.path.relative_to(ROOT).as_posix()})"
    return f"{link} ({', '.join(notes)})" if notes else link


def links_to_errata(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}](#{name.lower()})" for name in names)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def result(name: str, tests: list[Marked]) -> str:
    """shown; shown, but something waits; or waits."""
    waits = items()[name].get("waits")
    if waits is None:
        return "shown"
    return f"{'shown; ' if tests else ''}waits for {plain(waits)}"


def tests_of(item: str) -> list[Marked]:
    return [test for test in marked_tests() if item in test.items]


def totals() -> dict[str, tuple[int, int, int, int]]:
    """Source -> items, shown, shown with a part waiting, waiting."""
    found = {}
    for source in SOURCES:
        names = [name for name in items() if name.startswith(f"{source}-")]
        waiting = [name for name in names if "waits" in items()[name]]
        partly = sum(bool(tests_of(name)) for name in waiting)
        found[source] = (len(names), len(names) - len(waiting), partly, len(waiting) - partly)
    return found


def summary() -> Iterator[str]:
    yield "## What is shown"
    yield ""
    yield row("source", "author", "title", "items", "shown", "shown, a part waits", "waits")
    yield "|---|---|---|---|---|---|---|"
    for source, (author, title) in SOURCES.items():
        yield row(f"[{source}](#{source.lower()})", author, title, *map(str, totals()[source]))
    yield row("", "", "total", *(f"**{sum(column)}**" for column in zip(*totals().values(), strict=True)))
    yield ""
    yield "An item is shown by the tests that are marked with it, and waits for a room of the project where something"
    yield "of it is still to be shown there. Beside a test stands its file, unless that is one of the reference's,"
    yield "`slow` where `make test-slow` runs it, and `with data` where it needs files that are not shipped, found"
    yield "through `PELLUCID_DATA`."


def words() -> Iterator[str]:
    """Every choice of an architecture with its formula, as its source has it."""
    yield "## The options of an architecture"
    yield ""
    yield "Each value of an option has its formula beside it ([architecture.py](../src/pellucid/architecture.py)). For"
    yield "every value [the forward pass](../tests/conformance/test_engine_forward.py) and"
    yield "[the gradient](../tests/conformance/test_engine_gradient.py) of the engine equal the reference's, and the"
    yield "forward pass of both is that of [transformers](../tests/parity/test_every_family.py) for every family."
    for kind in (Positions, Norm, Attention, MLP, Architecture):
        yield from ["", f"**{kind.__name__}**", ""]
        if kind is not Architecture:
            yield from ["```text", inspect.getdoc(kind) or "", "```", ""]
        yield from [row("option", "values", "formula"), "|---|---|---|", *choices(kind)]


def choices(kind: type) -> Iterator[str]:
    """The fields of a class that take one of a few options, with their docstrings or the text they are explained in."""
    for name, text in field_docs(kind).items():
        if get_origin(hint := field_hints(kind)[name]) is Literal:
            formula = "<br>".join(code(line) for line in text.splitlines()) or "above"
            yield row(code(name), ", ".join(map(code, get_args(hint))), formula)


def names() -> Iterator[str]:
    """Every tensor of the forward pass."""
    from pellucid.tensor_names import TABLE

    yield NAMES
    yield from [row("name", "axes", "what it is", "in the source texts", "TransformerLens"), "|---|---|---|---|---|"]
    for r in TABLE:
        yield row(code(r.name), r.axes, plain(r.equation), plain(r.symbol), code(r.transformer_lens))


def reference() -> Iterator[str]:
    yield "## The functions of the reference"
    for module, title in ROOMS.items():
        path = f"../src/pellucid/reference/{module}.py"
        yield from ["", f"### {title}", "", f"[`reference/{module}.py`]({path})", ""]
        yield from [row("function", "definition", "source", "errata"), "|---|---|---|---|"]
        for name, node in defined(module).items():
            text = ast.get_docstring(node) or ""
            says, shapes = definition(text)
            cell = plain(says) + (f"<br>{code(shapes)}" if shapes else "")
            where = "; ".join(plain(c) for c in citations(text))
            yield row(link_of_function(module, name), cell, where, links_to_errata(cited_errata(text)))


def listed_items() -> Iterator[str]:
    yield "## The items"
    for source, (author, title) in SOURCES.items():
        head = f"{author}: {title}" if author else "Across the sources"
        yield from ["", f'<a id="{source.lower()}"></a>', "", f"### {source}. {head}", ""]
        yield from [row("item", "statement", "functions", "tests", "result"), "|---|---|---|---|---|"]
        for name, item in items().items():
            if name.startswith(f"{source}-"):
                tests = tests_of(name)
                functions = functions_of(tests)
                yield row(
                    name, plain(item["says"]), ", ".join(link_of_function(*f) for f in functions),
                    "; ".join(map(link_of_test, tests)), result(name, tests),
                )  # fmt: skip


def functions_of(tests: list[Marked]) -> list[tuple[str, str]]:
    """The functions that tests use, in the order of the modules; the activation of an example only where it is all."""
    found = sorted({f for test in tests for f in test.functions}, key=lambda f: (list(ROOMS).index(f[0]), f[1]))
    return [f for f in found if f[1] not in ("relu", "tanh")] or found


def listed_errata() -> Iterator[str]:
    by_id = {test.id: test for test in marked_tests()}
    yield "## Errata"
    yield ""
    counted = {c: sum(c in e["class"] for e in errata().values()) for c in CLASSES}
    yield f"{len(errata())} places where a source is wrong as printed, at odds with another one, or leaves a choice"
    yield "open. Classes:"
    yield ", ".join(f"{c} {CLASSES[c]} ({n})" for c, n in counted.items()) + "; one may have several. Policies:"
    policies = {p: sum(e["policy"] == p for e in errata().values()) for p in POLICIES}
    yield "; ".join(f"{p} ({n}): {POLICIES[p]}" for p, n in policies.items()) + "."
    yield ""
    yield row("erratum", "where, and what is printed", "correct", "counterexample, and tests")
    yield "|---|---|---|---|"
    for name, e in errata().items():
        tests = [link_of_test(by_id[t]) if t in by_id else link_of_id(t) for t in e.get("shown_by", [])]
        shown = "<br>".join([plain(e.get("check", ""))] * ("check" in e) + ["; ".join(tests)] * bool(tests))
        shown = shown or f"no test: {plain(e['untested'])}"
        first = f'<a id="{name.lower()}"></a>{name}<br>{", ".join(e["class"])}<br>{e["policy"]}'
        yield row(first, f"{plain(e['source'])}: {plain(e['printed'])}", plain(e["correct"]), shown)


def link_of_id(test: str) -> str:
    """A test that shows an erratum and no item."""
    path, _, name = test.partition("::")
    return link_of_test(Marked(TESTS / path, name, (), ()))


def page() -> str:
    """The whole of docs/mathematics.md."""
    sections = (summary(), words(), names(), reference(), listed_items(), listed_errata())
    return INTRODUCTION + NOTATION + "".join("\n" + "\n".join(section) + "\n" for section in sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    of_all = [sum(column) for column in zip(*totals().values(), strict=True)]
    print(f"{PAGE.relative_to(ROOT)}: {of_all[0]} items, {of_all[1]} shown, {of_all[2]} in part, {of_all[3]} waiting")
