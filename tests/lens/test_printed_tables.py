"""Results print as what they are: a heading and the largest rows, in a terminal and in a notebook."""

import math

import pytest
import torch

from pellucid.language_model import known_answer
from pellucid.lens.analysis.heads import Heads
from pellucid.lens.analysis.metrics import logit_diff
from pellucid.lens.show.printed_table import PRINTED_ROWS

CLEAN, CORRUPT = "Rome is the capital of", "Paris is the capital of"


@pytest.fixture(scope="module")
def model():
    return known_answer()


@pytest.fixture(scope="module")
def trace(model):
    return model.trace(CLEAN)


def lines_of(result):
    heading, columns, *rows = repr(result).splitlines()
    return heading, columns.split(), rows


def test_heads_print_the_highest_first(model):
    heading, columns, rows = lines_of(model.heads())
    assert heading == "scores of heads (layer.head) on 16 random tokens, twice"
    assert columns == ["head", "previous", "duplicate", "first", "induction", "attended_rank"]
    shares = [max(float(x) for x in row.split()[1:5]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert rows[0].split()[:2] == ["0.0", "1.000"]


def test_a_long_table_says_how_the_rest_is_reached():
    scores = {"previous": torch.linspace(0, 1, 20).reshape(5, 4), "first": torch.full((5, 4), math.nan)}
    *_, last_row, rest = repr(Heads("text", scores)).splitlines()
    assert last_row.split() == ["2.0", "0.421", "-"]
    assert rest == f"and {20 - PRINTED_ROWS} more: .table(by) has all rows, .show() is a page"


def test_an_attribution_prints_its_parts_and_their_sum(trace):
    token = int(trace.logits[0, -1].argmax())
    parts = trace.attribute(token, by="head")
    heading, columns, rows = lines_of(parts)
    assert heading.startswith(f"logit of {parts.target!r} at position {parts.position}: {parts.logit:.3f}, the sum of ")
    assert columns == ["part", "logits"]
    assert rows[0].split() == [parts.top(1)[0][0], f"{parts.top(1)[0][1]:.3f}"]


def test_patching_and_ablation_print_places(model):
    metric = logit_diff(" Italy", " France")
    patching = model.patch(CLEAN, CORRUPT, metric, site="resid_pre")
    _, columns, rows = lines_of(patching)
    assert columns[:2] == ["layer", "position"]
    layer, position = patching.best()
    assert rows[0].split()[:2] == [str(layer), str(position)]
    assert float(rows[0].split()[-1]) == pytest.approx(float(patching.recovered.max()), abs=1e-3)
    ablation = model.ablate([CLEAN], metric, site="attn.z", kind="zero")
    heading, _, rows = lines_of(ablation)
    assert f"{ablation.baseline:.3f} without" in heading
    assert abs(float(rows[0].split()[-1])) == pytest.approx(float(ablation.effect.abs().max()), abs=1e-3)


def test_other_results_print_as_tables(model, trace):
    effect = model.path_patch(
        CLEAN, CORRUPT, logit_diff(" Italy", " France"), sender=("blocks.0.mlp_out", None), receivers=[]
    )
    for result, first in (
        (trace.lens(), "logit lens at the last position"),
        (trace.decompose(), "the stream that is read out as a sum of 6 parts"),
        (trace.why(0, 0), "head 0.0, query 4, key"),
        (effect, "effect of the path on "),
    ):
        assert repr(result).startswith(first), repr(result)
        assert "tensor(" not in repr(result)


def test_a_notebook_has_html_in_which_a_text_is_no_markup(trace):
    page = trace.attribute(int(trace.logits[0, -1].argmax()))._repr_html_()
    assert page.count("<tr>") > 2
    assert "<script" not in Heads("<script>", {"first": torch.zeros(1, 1)})._repr_html_()
