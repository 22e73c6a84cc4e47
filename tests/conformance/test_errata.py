"""The list of errata is kept, and counterexamples that no other test computes: what is printed, taken at its word."""

import ast
import itertools
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from pellucid.presets import preset
from pellucid.reference import attention as A
from pellucid.reference import blocks as B
from pellucid.reference.bpe import count_pairs, most_frequent
from pellucid.reference.embedding import unembed
from pellucid.reference.functions import dropout, layer_norm, layer_scale, relu, softmax, softmax_matrix
from pellucid.reference.masks import causal_mask
from pellucid.reference.tokens import base_vocabulary, char_vocabulary, encode_symbols

TESTS = Path(__file__).parent.parent
REFERENCE = TESTS.parent / "src" / "pellucid" / "reference"
ERRATA = tomllib.loads((Path(__file__).parent / "errata.toml").read_text(encoding="utf-8"))
FIELDS = {"class", "source", "printed", "correct", "check", "policy", "shown_by", "untested"}


def cited(text: str) -> set[str]:
    """The errata named in a text, E-09 to E-13 being five of them."""
    found = {f"E-{n}" for n in re.findall(r"\bE-(\d\d)\b", text)}
    for first, last in re.findall(r"\bE-(\d\d) to E-(\d\d)\b", text):
        found |= {f"E-{n:02}" for n in range(int(first), int(last) + 1)}
    return found


def marked_tests(path: Path) -> dict[str, set[str]]:
    """The tests of a file, each with the errata it is marked with."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [m for m in node.decorator_list if isinstance(m, ast.Call)]
            named = [m.args for m in marks if ast.unparse(m.func) == "pytest.mark.erratum"]
            found[node.name] = {ast.literal_eval(argument) for arguments in named for argument in arguments}
    return found


# The list -----------------------------------------------------------------------------------------


def test_the_list_has_81_errata_with_a_class_and_a_policy():
    assert list(ERRATA) == [f"E-{n:02}" for n in range(1, 83) if n != 80]
    for name, erratum in ERRATA.items():
        assert FIELDS - {"check", "shown_by", "untested"} <= set(erratum) <= FIELDS, name
        assert set(erratum["class"]) <= set("WTAXLO"), name
        assert erratum["class"], name
        assert erratum["policy"] in ("correct", "variant", "doc"), name
        assert bool(erratum.get("shown_by")) != bool(erratum.get("untested")), f"{name}: a test, or why there is none"


def test_errata_that_are_cited_are_in_the_list():
    for path in (*REFERENCE.glob("*.py"), *TESTS.rglob("test_*.py")):
        if path != Path(__file__):
            assert cited(path.read_text(encoding="utf-8")) <= set(ERRATA), path.name


def test_what_was_corrected_is_cited_or_shown_and_the_tests_are_there():
    in_reference = set().union(*(cited(path.read_text(encoding="utf-8")) for path in REFERENCE.glob("*.py")))
    for name, erratum in ERRATA.items():
        for test in erratum.get("shown_by", []):
            path, _, function = test.partition("::")
            assert function in marked_tests(TESTS / path), f"{name} is shown by {test}, which is not there"
        if erratum["policy"] != "doc":
            assert name in in_reference or erratum.get("shown_by"), name


def test_tests_marked_with_an_erratum_are_named_by_it():
    for path in TESTS.rglob("test_*.py"):
        for test, errata in marked_tests(path).items():
            for name in errata:
                assert f"{path.relative_to(TESTS).as_posix()}::{test}" in ERRATA[name]["shown_by"]


# Counterexamples ----------------------------------------------------------------------------------


@pytest.mark.erratum("E-01")
def test_one_normaliser_for_the_matrix_shrinks_the_output_with_the_length():
    """Rows have mass 1/n on average, so what a head adds fades as the text grows; by rows it does not."""
    rng, ratios = np.random.default_rng(0), []
    for n in (8, 64, 512):
        scores, X = rng.normal(size=(n, n)), rng.normal(size=(n, 8))
        rows, whole = (by(scores, where=causal_mask(n)) for by in (softmax, softmax_matrix))
        np.testing.assert_allclose(rows.sum(1), 1, atol=1e-12)
        assert whole.sum() == pytest.approx(1)
        assert whole.sum(1).mean() == pytest.approx(1 / n)
        ratios.append(np.sqrt(np.mean((whole @ X) ** 2) / np.mean((rows @ X) ** 2)))
    assert ratios[0] > 2 * ratios[1] > 4 * ratios[2]


@pytest.mark.erratum("E-05")
def test_printed_parallel_blocks_of_zero_weights_treble_the_stream():
    X = np.array([[1.0, -2.0]])

    def nothing(Y):
        return 0 * Y

    printed, ours = X, X
    for _ in range(10):
        printed = printed + B.residual(nothing)(printed) + B.residual(nothing)(printed)
        ours = B.parallel_block(ours, nothing, nothing)
    assert np.array_equal(printed, 59_049 * X)
    assert np.array_equal(ours, X)


@pytest.mark.erratum("E-06")
def test_without_a_scale_attention_starts_as_a_choice_of_one():
    """Entropy over 32 keys at d_head = 64, in nats; of the uniform distribution it is 3.47."""
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(400, 64)), rng.normal(size=(400, 32, 64))
    scores = np.einsum("bd,bjd->bj", q, k)

    def entropy(p):
        return float(np.mean(-np.sum(p * np.log(np.maximum(p, 1e-300)), axis=-1)))

    assert np.var(scores) == pytest.approx(64, rel=0.1)
    assert entropy(softmax(A.default_scale(64) * scores)) == pytest.approx(3.03, abs=0.05)
    assert entropy(softmax(A.default_scale(64, "1") * scores)) == pytest.approx(0.48, abs=0.06)


@pytest.mark.erratum("E-08")
def test_a_softmax_sums_to_one_over_the_vocabulary_and_not_over_the_positions():
    p = softmax(np.zeros(10))
    assert p[:6].sum() == pytest.approx(0.6)
    assert p.sum() == pytest.approx(1)


@pytest.mark.erratum("E-12")
def test_counted_without_overlaps_another_pair_wins():
    documents = ["aaaaa", "bc", "bc", "bc"]
    apart = {pair: sum(document.count(pair) for document in documents) for pair in ("aa", "bc")}
    assert apart == {"aa": 2, "bc": 3}
    assert most_frequent(count_pairs([d.encode() for d in documents])) == (ord("a"), ord("a"))


@pytest.mark.erratum("E-17")
def test_the_first_text_and_gpt_3_are_two_presets():
    ours, gpt3 = preset("becker-kahn"), preset("gpt3")
    assert (ours.norm.kind, ours.final_norm, ours.positions.kind) == ("none", "none", "none")
    assert (ours.attention.bias, ours.attention.scale, ours.dropout.embed) == ("none", "1", 0)
    assert (gpt3.norm.kind, gpt3.final_norm, gpt3.positions.kind) == ("layer", "norm", "learned")
    assert (gpt3.attention.bias, gpt3.attention.scale) == ("all", "1/sqrt(d_head)")


@pytest.mark.erratum("E-26")
def test_a_norm_divides_by_the_standard_deviation():
    x = np.array([1.0, 2, 3, 4])
    by_variance = (x - x.mean()) / np.var(x)
    assert by_variance.std() == pytest.approx(0.894, abs=1e-3)
    np.testing.assert_allclose((2 * x - 2 * x.mean()) / np.var(2 * x), by_variance / 2)
    assert layer_norm(x, eps=0.0).std() == pytest.approx(1)


@pytest.mark.erratum("E-28")
def test_dropout_on_the_mixture_has_another_variance():
    w, v = np.array([0.4, 0.3, 0.2, 0.1]), np.array([4.0, -1.0, 3.0, 2.0])
    masks = [np.array(keep) for keep in itertools.product([True, False], repeat=4)]
    assert np.var([dropout(w, 0.5, keep) @ v for keep in masks]) == pytest.approx(3.05)
    assert np.var([dropout(w @ v, 0.5, np.array(keep)) for keep in (True, False)]) == pytest.approx(4.41)


@pytest.mark.erratum("E-31", "E-45")
def test_logits_are_no_probabilities():
    y = np.array([0.0, np.log(3)])
    p = softmax(y)
    assert y.sum() != pytest.approx(1)
    assert (y - 5).max() < 0
    np.testing.assert_allclose(softmax(y - 5), p)
    assert y[0] / y[1] == 0
    assert p[0] / p[1] == pytest.approx(1 / 3)


@pytest.mark.erratum("E-32")
def test_read_out_by_the_transpose_many_tokens_are_others():
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(40, 50, 8))
    itself = np.mean([unembed(W_E, W_E).argmax(1) == np.arange(50) for W_E in tables])
    assert itself == pytest.approx(0.73, abs=0.03)


@pytest.mark.erratum("E-46", "E-69")
def test_ranks_are_bounds():
    rng = np.random.default_rng(0)
    row, W_K, W_O = rng.normal(size=(1, 6)), rng.normal(size=(2, 6)), rng.normal(size=(6, 2))
    assert np.linalg.matrix_rank(A.qk_circuit(np.vstack([row, row]), W_K)) == 1
    assert np.linalg.matrix_rank(A.ov_circuit(W_O, np.zeros((2, 6)))) == 0


@pytest.mark.erratum("E-51")
def test_a_deviation_without_its_minus():
    x = np.array([1.0, 2, 3, 4])
    assert np.sqrt(np.mean((x * x.mean()) ** 2)) == pytest.approx(6.85, abs=0.005)
    assert layer_scale(x, eps=0.0) == pytest.approx(1.118, abs=5e-4)


@pytest.mark.erratum("E-52")
def test_thresholds_that_do_not_move_miss_the_shifted_absolute_value():
    """Right of 0 the printed family is c + a x. With weights 2/3, -1, 1/3 its errors at 0, 1, 3 sum to -4/3.

    Whatever c and a are, the largest of the three is therefore 2/3 or more, and c = 1/3, a = 1/3 reaches it. The
    least-squares fit on [-3, 3] is 0.816 away.
    """
    for c, a in [(1 / 3, 1 / 3), *np.random.default_rng(0).normal(size=(50, 2))]:
        errors = np.array([c + a * x - abs(x - 1) for x in (0.0, 1.0, 3.0)])
        assert errors @ [2 / 3, -1, 1 / 3] == pytest.approx(-4 / 3)
        assert np.abs(errors).max() >= 2 / 3 - 1e-12
    x = np.linspace(-3, 3, 6001)[:, None]
    best = 1 / 3 + relu(x) / 3 + relu(-x)
    assert np.abs(best - np.abs(x - 1)).max() == pytest.approx(2 / 3)
    family = np.column_stack([relu(x), relu(-x), np.ones_like(x)])
    fit = family @ np.linalg.lstsq(family, np.abs(x - 1), rcond=None)[0]
    assert np.abs(fit - np.abs(x - 1)).max() == pytest.approx(0.816, abs=2e-3)


@pytest.mark.erratum("E-59")
def test_a_row_with_everything_masked_is_not_a_number():
    masked = np.array([-np.inf, -np.inf])
    with np.errstate(invalid="ignore"):
        assert np.all(np.isnan(np.exp(masked) / np.exp(masked).sum()))
    assert softmax(masked).tolist() == [0, 0]


@pytest.mark.erratum("E-63")
def test_last_factors_are_no_distribution_of_strings():
    rng = np.random.default_rng(0)
    first, following = softmax(rng.normal(size=3)), softmax(rng.normal(size=(3, 3)))
    strings = list(itertools.product(range(3), repeat=2))
    assert sum(first[i] * following[i, j] for i, j in strings) == pytest.approx(1)
    assert sum(following[i, j] for i, j in strings) == pytest.approx(3)


@pytest.mark.erratum("E-70")
def test_merged_value_and_output_matrices_cost_more_below_full_width():
    rng = np.random.default_rng(0)
    W_V, W_O = rng.normal(size=(2, 8)), rng.normal(size=(8, 2))
    assert W_V.size + W_O.size == 32
    assert A.ov_circuit(W_O, W_V).size == 64
    assert np.linalg.matrix_rank(A.ov_circuit(W_O, W_V)) == 2 < np.linalg.matrix_rank(rng.normal(size=(8, 8)))


@pytest.mark.erratum("E-71")
def test_ascii_has_128_codes():
    assert sum(chr(code).isascii() for code in range(256)) == 128
    assert sum(chr(code).isprintable() for code in range(128)) == 95
    with pytest.raises(UnicodeDecodeError):
        bytes([128]).decode("ascii")
    assert len(base_vocabulary(special=())) == 256


@pytest.mark.erratum("E-75")
def test_dropout_that_is_not_rescaled_loses_a_share_of_the_mean():
    keep = np.random.default_rng(0).random(100_000) >= 0.1
    assert np.where(keep, 1.0, 0.0).mean() == pytest.approx(0.9, abs=0.005)
    assert dropout(np.ones(100_000), 0.1, keep).mean() == pytest.approx(1, abs=0.005)


@pytest.mark.erratum("E-78")
def test_one_softmax_for_all_predictions_gives_each_a_fraction():
    logits = np.random.default_rng(0).normal(size=(5, 7))
    assert softmax_matrix(logits).sum() == pytest.approx(1)
    assert softmax_matrix(logits).sum(1).max() < 1
    np.testing.assert_allclose(softmax(logits).sum(1), 1)


@pytest.mark.erratum("E-81")
def test_the_string_of_the_slide_has_two_xs_either_way():
    for text in (
        "insswedurhwsiednsdfssjsjsaadsdadaszasazzxasxasdasdadwea",
        "in sswedurhwsiednsdfssjsjsaadsdadaszasazzxasxasdasdadwea",
    ):
        letters = char_vocabulary(text)
        assert encode_symbols(text, letters).count(letters.index("x")) == 2
