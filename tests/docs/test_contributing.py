"""The recipes of CONTRIBUTING.md name every place: a toy that is added there, and nowhere else, works everywhere."""

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest
import torch
from torch import nn

import pellucid
from drawing import make_network
from pellucid import architecture, option_values
from pellucid.architecture import Architecture, PositionalScheme, Positions
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.positional import distance_bias, position_rows
from pellucid.look import steps
from pellucid.model import Recorder, positions
from pellucid.model.tables import Table
from pellucid.model.weights import state_of
from pellucid.parameter_counts import count_parameters
from pellucid.reference import positions as definitions
from pellucid.reference.learning import loss_and_gradient
from pellucid.reference.tap import TensorRecorder
from pellucid.reference.tape import real
from pellucid.reference.transformer import forward
from pellucid.tensor_names import names
from pellucid.text_model import of_ids
from pellucid.verify import verify
from running import draw_tokens

SOURCE = Path(pellucid.__file__).parent
CONTRIBUTING = SOURCE.parent.parent / "CONTRIBUTING.md"


def places_of(recipe: str) -> set[str]:
    """What stands in backticks in one recipe of CONTRIBUTING.md."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition(f"## {recipe}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`([^`]+)`", section))


# Two positional schemes: weights in the scores, and a formula in the stream -------------------------


class LogDistance(nn.Embedding):
    """score_ij -= r_h log(1 + |i - j|)   (Chi et al. 2022, KERPLE, its logarithmic variant)"""

    def __init__(self, a: Architecture):
        super().__init__(1, a.n_heads)

    def score_bias(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return -self.weight[0, :, None, None] * torch.log1p((i - j).abs().to(self.weight.dtype))


def log_distance(a, n, n_keys, table):
    i, j = np.arange(n_keys - n, n_keys)[:, None], np.arange(n_keys)
    return -real(table)[0][:, None, None] * np.log1p(np.abs(i - j))


class BinaryDigits(Table):
    """x_i += the last m binary digits of i"""

    def __init__(self, a: Architecture):
        i = torch.arange(a.n_ctx, device="cpu")[:, None]
        k = torch.arange(a.embed_sum_width, device="cpu").clamp(max=30)
        super().__init__((i >> k) & 1)

    def added(self, positions: torch.Tensor) -> torch.Tensor:
        return self.values[positions]


def binary_digits(a, table, positions):
    return (positions[..., None] >> np.minimum(np.arange(a.embed_sum_width), 30)) & 1


#: scheme -> what is written for it, in the order of the recipe: the entry of POSITIONAL_SCHEMES, the name of the table
#: in model/positions.py and its class, the name of the table in reference/positions.py and its function, the TeX
TOYS: dict[str, tuple[PositionalScheme, str, type[nn.Module], str, Callable, str]] = {
    "log-distance": (
        PositionalScheme("scores", weights=lambda a: (1, a.n_heads)),
        *("SHARED_SCORE_BIAS", LogDistance, "SCORE_BIAS", log_distance, " - r_h \\log (1 + i - j)"),
    ),
    "binary-digits": (
        PositionalScheme("stream"),
        *("ADDED_POSITIONS", BinaryDigits, "POSITION_ROWS", binary_digits, "(\\lfloor i / 2^k \\rfloor \\bmod 2)_k"),
    ),
}


@pytest.fixture(params=TOYS)
def toy_scheme(request, monkeypatch) -> str:
    """The name of a scheme that is added at the places of the recipe."""
    kind = request.param
    scheme, engine_table, engine, reference_table, definition, tex = TOYS[kind]
    known = get_args(Positions.__annotations__["kind"])
    monkeypatch.setitem(Positions.__annotations__, "kind", Literal[(*known, kind)])
    monkeypatch.setitem(architecture.POSITIONAL_SCHEMES, kind, scheme)
    monkeypatch.setitem(getattr(positions, engine_table), kind, engine)
    monkeypatch.setitem(getattr(definitions, reference_table), kind, definition)
    monkeypatch.setitem(steps.POSITION_TEX, kind, lambda a: tex)
    for remembered in (option_values.field_hints, architecture.field_type):
        remembered.cache_clear()
    yield kind
    for remembered in (option_values.field_hints, architecture.field_type):
        remembered.cache_clear()


def test_the_recipe_names_the_places_of_a_positional_scheme():
    places = {"architecture.py", "model/positions.py", "reference/positions.py", "look/steps.py"}
    tables = {
        "Positions.kind",
        "POSITIONAL_SCHEMES",
        "ADDED_POSITIONS",
        "POSITION_ROWS",
        "ROTATED",
        "SCORE_BIAS",
        "SHARED_SCORE_BIAS",
    }
    assert places | tables | {"POSITION_TEX"} <= places_of("Add a positional scheme")


def test_a_new_positional_scheme_is_the_definition_s(toy_scheme):
    """Every named tensor and every gradient, the number of parameters, and the steps that the inspector shows."""
    a = Architecture(d_model=8, n_layers=2, n_ctx=9, n_vocab=11).with_fields(
        {"n_heads": 2, "positions.kind": toy_scheme}
    )
    network, recorder, tap = make_network(a), Recorder(names(a)), TensorRecorder()
    weights = {name: p.numpy() for name, p in state_of(network).items()}
    tokens = draw_tokens(a, 2, 9)
    logits = network(tokens, tap=recorder)
    np.testing.assert_allclose(logits.detach().numpy(), forward(a, weights, tokens.numpy(), tap=tap), atol=1e-10)
    for name in names(a):
        np.testing.assert_allclose(recorder.values[name].detach().numpy(), tap.values[name], atol=1e-10, err_msg=name)
    assert sum(p.numel() for p in network.parameters()) == count_parameters(a)["total"]
    assert {step.name for step in steps.model_steps(a)} == {*names(a), "probs"}
    losses = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    losses.backward()
    _, gradient = loss_and_gradient(a, weights, tokens.numpy())
    for name, p in network.named_parameters(remove_duplicate=True):
        if name in gradient:
            np.testing.assert_allclose(p.grad.numpy(), gradient[name], atol=1e-10, err_msg=name)
    view = (
        distance_bias(Circuits(of_ids(network)), 0, 5) if a.biases_scores else position_rows(Circuits(of_ids(network)))
    )
    assert view.abs().max() > 0


def test_a_new_positional_scheme_is_trained_saved_verified_and_written_with(toy_scheme, tmp_path, shakespeare):
    (tmp_path / "text.txt").write_text(shakespeare[:5000], encoding="utf-8")
    fields = {"d_model": 8, "n_heads": 2, "n_layers": 1, "n_ctx": 16, "positions.kind": toy_scheme, "tokenizer": "byte"}
    fields |= {"device": "cpu", "compile": "no", "precision": "float32", "attention": "fused", "batch": 4}
    run = pellucid.train(tmp_path / "text.txt", out=tmp_path / "run", steps=3, fields=fields)
    assert run.recipe.model.positions.kind == toy_scheme
    model = pellucid.load(tmp_path / "run")
    assert verify(model).exit_code == 0
    prompt = [int(token) for token in model.tokenizer.encode("To be, or")]
    cached = pellucid.load(tmp_path / "run").generate("To be, or", max_tokens=6, temperature=0.0)
    model.save(tmp_path / "saved")
    again = pellucid.load(tmp_path / "saved")
    row = torch.tensor([prompt])
    assert torch.equal(again.network(row), model.network(row))
    assert str(again.generate("To be, or", max_tokens=6, temperature=0.0)) == str(cached)


#: files that compare positions.kind with the name of a scheme, and why
NAMING_SCHEMES = {
    "architecture.py": "the checks of each scheme's fields, and the sizes of rotary tables",
    "hub/canonical_fields.py": "the two formulas of ALiBi's slopes agree for some numbers of heads",
    "hub/tables/rotary.py": "the entries of config.json of rotary positions",
    "verify/windows.py": "the bucket behind which a definition of relative positions is slow",
}


def test_no_file_asks_which_positional_scheme_there_is():
    """A question such as "does it add rows?" is asked of the architecture, so that a new scheme needs no new branch."""

    def compares_kind(node: ast.AST) -> bool:
        return isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("positions.kind")

    files = {
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        if "positions.kind" in (text := path.read_text(encoding="utf-8"))
        if any(compares_kind(node) for node in ast.walk(ast.parse(text)))
    }
    assert files - {"model/positions.py"} == NAMING_SCHEMES.keys()
