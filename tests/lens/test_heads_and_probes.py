"""Head detectors find heads that are built to do what they look for; probes and directions what was planted."""

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import architectures, difference, make_network
from pellucid import edits as change
from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.language_model import LanguageModel
from pellucid.lens import Circuits, Head, InputError, trace
from pellucid.lens.analysis.heads import HEAD_SCORES, HeadScore, detect_heads, head_scores, repeated_tokens
from pellucid.lens.analysis.steering import activations, direction, equal_rows, fit_probe, mean_activation
from pellucid.model import Transformer
from pellucid.tensor_names import axes, names
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.text_model import of_ids
from running import any_architectures, draw_tokens, with_encoder

A = Architecture(n_vocab=11, n_ctx=12, d_model=8, n_layers=2).with_fields({"attention.n_heads": 2})


def test_scores_on_a_text_and_scores_of_weights_have_different_names():
    assert not {*get_args(HeadScore)} & {*dir(Circuits), *dir(Head)}


def test_the_scores_are_those_of_patterns_written_down():
    """Two heads whose patterns are set by edits: one looks back one token, one at what followed the last occurrence."""
    network, ids = make_network(A), [3, 1, 4, 3, 1, 4, 3]
    pattern = torch.zeros(1, 2, 7, 7, dtype=torch.float64)
    for i in range(7):
        pattern[0, 0, i, max(i - 1, 0)] = 1
        pattern[0, 1, i, i - 2 if i >= 3 else i] = 1
    t = trace(of_ids(network), ids, edits=[change.set_to("blocks.0.attn.pattern", pattern)])
    found = head_scores(t).scores
    assert found["previous"][0].tolist() == [1.0, 0.0]
    assert found["induction"][0].tolist() == [0.0, 1.0]
    assert found["first"][0].tolist() == [1 / 6, 0.0]
    assert found["duplicate"][0].tolist() == [0.0, 0.0]


def test_a_head_that_copies_is_found():
    """W_O W_V = 1 and -1: what is attended to is written as it is, or its negative."""
    a = Architecture(
        n_vocab=8,
        n_ctx=12,
        d_model=8,
        n_layers=1,
        attention=Attention(n_heads=2, d_head=8, bias="none"),
        mlp=MLP(n_hidden=0, bias="none"),
        positions=Positions(kind="none"),
        norm=Norm(kind="none"),
    )
    network = make_network(a)
    with torch.no_grad():
        network.embed.token.weight.copy_(torch.eye(8))
        network.blocks[0].attn.value.weight.copy_(torch.cat([torch.eye(8), torch.eye(8)]))
        network.blocks[0].attn.out.weight.copy_(torch.cat([torch.eye(8), -torch.eye(8)], 1))
    found = detect_heads(of_ids(network)).scores["attended_rank"][0]
    assert difference(found, torch.tensor([7 / 8, -7 / 8], dtype=torch.float64)) <= 1e-12


@settings(max_examples=15)
@given(architectures(max_ctx=10))
def test_scores_of_any_architecture(a):
    found = detect_heads(of_ids(make_network(a)), rows=2)
    for kind in HEAD_SCORES:
        scores = found.scores[kind]
        assert scores.shape == (a.n_layers, a.n_heads)
        assert (scores[~scores.isnan()].abs() <= 1 + 1e-9).all()
    assert not found.scores["induction"].isnan().any()
    assert len(found.table()) == a.n_layers * a.n_heads
    layer, head = found.best("induction")
    top = found.table(by="induction")[0]
    assert (top["layer"], top["head"]) == (layer, head)


@settings(max_examples=10)
@given(any_architectures())
def test_the_scores_that_are_asked_for_in_every_part(a):
    network, source = make_network(a), {} if a.encoder is None else {"source": [1, 2, 1]}
    t = trace(of_ids(network), draw_tokens(a, 1, 4), **source)
    parts = {"attn": "blocks.{}.attn"}
    if a.encoder is not None:
        parts |= {"cross": "blocks.{}.cross", "encoder": "encoder.blocks.{}.attn"}
    for part, scope in parts.items():
        scores = head_scores(t, kinds=("entropy",), part=part).scores["entropy"]
        assert scores.size(0) == (a.n_layers if part != "encoder" else a.encoder.n_layers)
        pattern = t[f"{scope.format(0)}.pattern"][0]
        expected = -(pattern * pattern.clamp(min=1e-300).log2()).sum(-1).mean(-1)
        assert difference(scores[0], expected) <= 1e-12
    if a.encoder is not None:
        copied = head_scores(t, kinds=("duplicate",), part="encoder").scores["duplicate"][0]
        assert difference(copied, t["encoder.blocks.0.attn.pattern"][0, :, 2, 0]) <= 1e-12
        with pytest.raises(InputError, match="part = cross has no score 'first'"):
            head_scores(t, kinds=("first",), part="cross")
    else:
        with pytest.raises(InputError, match="has no encoder"):
            head_scores(t, kinds=("entropy",), part="encoder")
    assert [*detect_heads(of_ids(network), text=[1, 2, 1], kinds=("first",), **source).scores] == ["first"]


def test_a_text_without_repetition_gives_no_occasion():
    found = detect_heads(of_ids(make_network(A)), text=[1, 2, 3, 4])
    assert found.scores["induction"].isnan().all()
    assert not found.scores["previous"].isnan().any()


def test_random_tokens_come_after_the_opening_where_it_is_asked_for():
    tokenizer = learn_tokenizer("char", ["abcdefgh "], None)
    model = LanguageModel(make_network(A), tokenizer, {})
    found = model.heads(bos=True, kinds=("previous", "induction"))
    assert "after the tokenizer's opening" in found.text
    repeated = repeated_tokens(min(A.n_vocab, tokenizer.n_vocab), 4, 5, 0).tolist()
    expected = detect_heads(model, text=[[tokenizer.separator, *row] for row in repeated])
    for kind, scores in found.scores.items():
        assert difference(scores, expected.scores[kind]) <= 1e-12
    with pytest.raises(InputError, match="1 of which bos=True takes"):
        model.heads(bos=True, period=6)


def test_one_kind_may_be_given_by_itself():
    found = detect_heads(of_ids(make_network(A)), kinds="induction")
    assert torch.equal(found.scores["induction"], detect_heads(of_ids(make_network(A))).scores["induction"])
    assert [*found.scores] == ["induction"]


def test_repeated_tokens():
    tokens = repeated_tokens(11, 3, 5, 0)
    assert torch.equal(tokens[:, :5], tokens[:, 5:])
    assert all(len(set(row[:5].tolist())) == 5 for row in tokens)
    assert not torch.equal(tokens, repeated_tokens(11, 3, 5, 1))


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda: detect_heads(of_ids(make_network(A)), period=7), "expected two periods to fit"),
        (lambda: detect_heads(of_ids(make_network(A))).best("copier"), "choose one of previous"),
        (
            lambda: detect_heads(of_ids(make_network(A)), text=[1, 2, 3, 4]).best("induction"),
            "no head has the score 'induction'",
        ),
        (lambda: detect_heads(of_ids(make_network(A)), text=[1, 2], rows=2), "rows is for random tokens"),
        (lambda: detect_heads(of_ids(make_network(A)), text=[1, 2], period=2), "period is for random tokens"),
        (lambda: detect_heads(of_ids(make_network(A)), text=[1, 2], seed=0), "seed is for random tokens"),
        (lambda: detect_heads(of_ids(make_network(A)), prefix=2), "prefix is for a text"),
        (lambda: detect_heads(of_ids(make_network(A)), rows=0), "rows = 0: expected 1 or more"),
        (lambda: detect_heads(of_ids(make_network(A)), kinds=[]), "give one or more of previous"),
        (
            lambda: mean_activation(of_ids(make_network(A)), [1, 2], "loss"),
            "the loss is no tensor that an edit changes",
        ),
        (lambda: detect_heads(of_ids(Transformer(A.with_fields({"n_layers": 0})))), "there are no heads"),
        (lambda: activations(of_ids(make_network(A)), [[1]], "blocks.0.attn.q"), "one vector for each position"),
        (lambda: fit_probe(torch.zeros(3, 2), [1, 2, 3]), "expected 4 or more"),
        (lambda: fit_probe(torch.zeros(5, 2), [1] * 5), "expected at least two classes"),
        (lambda: fit_probe(torch.eye(4), [0.0, 1.0, 2.0, 3.0]), "of numbers needs two"),
        (lambda: fit_probe(torch.eye(3).repeat(4, 1), ["a", "b"] * 6), "12 rows, of which 3 are different"),
        (lambda: fit_probe(torch.zeros(4, 2), ["a", 0.5, "b", "a"]), "expected labels alone"),
    ],
)
def test_questions_without_an_answer_say_why(ask, reason):
    with pytest.raises(InputError, match=reason):
        ask()


def test_a_probe_finds_what_is_there_and_nothing_where_nothing_is():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 20, generator=generator, dtype=torch.float64)
    labels = ["plus" if v > 0 else "minus" for v in (x @ torch.linspace(-1, 1, 20, dtype=torch.float64)).tolist()]
    probe = fit_probe(x, labels)
    assert probe.held_out >= 0.9
    assert 0.3 <= sum(probe.shuffled) / 5 <= 0.7
    assert probe.predict(x[:5]) == labels[:5]
    noise = fit_probe(torch.randn(300, 20, generator=generator), labels)
    assert abs(noise.held_out - sum(noise.shuffled) / 5) <= 0.25
    numbers = fit_probe(x, (x[:, 3] * 2 + 1).tolist())
    assert numbers.held_out >= 0.99
    assert max(numbers.shuffled) <= 0.2
    assert difference(numbers.predict(x[:3]), x[:3, 3] * 2 + 1) <= 0.05


@pytest.mark.parametrize(
    "targets",
    [[0, *(k / 4 for k in range(1, 20))], list(np.linspace(0, 5, 20, dtype=np.float32)), np.linspace(0, 5, 20)],
)
def test_targets_are_numbers_where_any_of_them_is_a_floating_point_one(targets):
    probe = fit_probe(torch.arange(20.0)[:, None], targets)
    assert probe.classes == []
    assert probe.held_out >= 0.99


def test_labels_of_numpy_are_labels():
    probe = fit_probe(torch.arange(20.0)[:, None], np.array([0] * 10 + [1] * 10))
    assert probe.classes == [0, 1]
    assert type(probe.classes[0]) is int


@pytest.mark.gpu
def test_a_probe_of_activations_on_a_gpu_predicts_what_one_on_the_cpu_does():
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] > 0).tolist()
    expected, found = (fit_probe(rows, labels) for rows in (x, x.to("cuda")))
    assert found.predict(x.to("cuda")) == expected.predict(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_probe_knows_nothing_of_random_labels_of_texts_that_were_given_several_times(dtype):
    """Copies are all on one side, whichever batch they were read in."""
    network = make_network(A.with_fields({"d_model": 64}), dtype=dtype)
    texts = [draw_tokens(A, 1, 4, seed=k)[0].tolist() for k in range(60)] * 4
    random = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 2, (60,), generator=random).tolist() * 4
    lengths = [*texts[:-1], draw_tokens(A, 1, 8)[0].tolist()]  # the last batch is padded to another width
    x = activations(of_ids(network), lengths, "blocks.1.resid_post", at_once=7)
    probe = fit_probe(x, [*labels[:-1], 0], shuffles=10)
    assert 0.2 <= probe.held_out <= 0.8
    assert 0.3 <= sum(probe.shuffled) / 10 <= 0.7


@settings(max_examples=30)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.sampled_from([torch.float32, torch.float64]))
def test_equal_rows_have_one_number(numbers, dtype):
    different = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=dtype) + 1
    rounding = 1 + torch.finfo(dtype).eps * torch.arange(len(numbers))[:, None] / 4
    found = equal_rows(different[numbers] * rounding)
    assert (found[:, None] == found).tolist() == [[one == other for other in numbers] for one in numbers]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_equal_rows_among_many_have_one_number(dtype):
    """Where other rows have nearly the same product with any one vector."""
    generator = torch.Generator().manual_seed(0)
    different = torch.randn(500, 64, generator=generator, dtype=torch.float64)
    rounding = 1 + torch.finfo(dtype).eps / 4 * torch.randn(500, 64, generator=generator)
    found = equal_rows(torch.cat([different, different * rounding]).to(dtype))
    assert found.tolist() == [*range(500), *range(500)]


@pytest.mark.parametrize("copies", [1, 3])
def test_the_penalty_is_the_best_of_leaving_one_out(copies):
    """The shortcut through leverages against the loop that it stands for: copies of a row are left out with it."""
    from pellucid.lens.analysis.steering import PENALTIES, _ridge

    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(12, n, generator=generator, dtype=torch.float64) for n in (5, 1))
    group = torch.arange(12).remainder(12 // copies)
    x, y = x[group], y + (group[:, None] == 0)
    _, _, chosen = _ridge(x, y, group)

    def loop(penalty):
        errors = []
        size = float(torch.linalg.svdvals(x - x.mean(0)).square().mean())
        for k in range(12 // copies):
            keep = group != k
            # centred with the row left out weighs as the closed form has it: intercept unpenalised
            ones = torch.cat([x[keep], torch.ones(12 - copies, 1, dtype=torch.float64)], 1)
            ridge = torch.diag(torch.tensor([penalty * size] * 5 + [0.0], dtype=torch.float64))
            w = torch.linalg.solve(ones.T @ ones + ridge, ones.T @ y[keep])
            mean_of_copies = y[~keep].mean(0)
            errors.append(float((torch.cat([x[k], torch.ones(1)]) @ w - mean_of_copies).square()))
        return sum(errors)

    assert chosen == min(PENALTIES, key=loop)


def test_a_direction_is_a_difference_of_means():
    network = make_network(A)
    one, other = draw_tokens(A, 3, 4).tolist(), draw_tokens(A, 2, 5, 1).tolist()
    found = direction(of_ids(network), one, other, "blocks.1.resid_pre")
    means = [trace(of_ids(network), texts)[1].resid_pre[:, -1].mean(0) for texts in (one, other)]
    assert difference(found, means[0] - means[1]) <= 1e-12
    mean = activations(of_ids(network), [[1, 2], [3, 4, 5]], "blocks.0.mlp.post", "mean")
    assert difference(mean[0], trace(of_ids(network), [1, 2])[0].mlp.post[0].mean(0)) <= 1e-12


@settings(max_examples=20)
@given(any_architectures(), st.data())
def test_the_mean_over_a_data_set_counts_every_token_once_and_is_the_value_of_an_edit(a, data):
    """Rows of any lengths, two at a time, as if each were alone; of an encoder's tensors, the source's tokens."""
    network = make_network(a)
    name = data.draw(st.sampled_from([n for n in names(a) if not n.endswith((".scores", ".pattern"))]))
    rows = [draw_tokens(a, 1, n, seed=n)[0].tolist() for n in (4, 2, 3)]
    sources = None if a.encoder is None else [draw_tokens(a.encoder, 1, n)[0].tolist() for n in (1, 3, 2)]
    given_ = {} if sources is None else {"source": sources}
    found = mean_activation(of_ids(network), rows, name, at_once=2, **given_)
    alone = []
    for k, ids in enumerate(rows):
        t = trace(of_ids(network), ids, **({} if sources is None else {"source": sources[k]}))
        x = t[name]
        alone.append(x[0].transpose(0, 1) if x.ndim == 4 else x[0])
    every = torch.cat(alone)
    assert difference(found, (every.mean(0)[None, :, None] if every.ndim == 3 else every.mean(0)[None, None])) <= 1e-10
    one = {} if sources is None else {"source": sources[0]}
    t = trace(of_ids(network), rows[0], edits=[change.mean(name, over=found)], **one)
    assert difference(t[name], found.expand_as(t[name])) <= 1e-12
    if len(axes(name)) == 3:
        last, means = (activations(of_ids(network), rows, name, pos, at_once=2, **given_) for pos in (-1, "mean"))
        assert difference(last, torch.stack([x[-1] for x in alone])) <= 1e-10
        assert difference(means, torch.stack([x.mean(0) for x in alone])) <= 1e-10


def test_patterns_have_no_mean():
    with pytest.raises(InputError, match="have no mean"):
        mean_activation(of_ids(make_network(A)), [[1, 2]], "blocks.0.attn.pattern")
    with pytest.raises(InputError, match="no text was given"):
        mean_activation(of_ids(make_network(A)), [], "embed")


def test_a_probe_of_an_encoder_decoder_reads_its_sources():
    tokenizer = learn_tokenizer("char", ["abcdefgh "], None)
    model = LanguageModel(make_network(with_encoder(A)), tokenizer, {})
    sources = ["ab", "cd", "ef", "gh", "ba", "dc"]
    probe = model.probe(["a"] * 6, ["x", "y"] * 3, "encoder.final_norm", source=sources, shuffles=2)
    assert len(probe.shuffled) == 2
