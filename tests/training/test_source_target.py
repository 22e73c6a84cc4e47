"""Encoder-decoder training: what is read and scored, accumulation, resume, the encoder's fields, reversal."""

import json
import math
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import write_pairs
from tests.training.tiny import FIELDS, Heard, rows
from tiny import start_recipe

import pellucid
from pellucid.generate import generate
from pellucid.option_values import ArchitectureError
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import cache_folder
from pellucid.text.read.pairs import PairsError, read_pairs, split_pairs
from pellucid.text.tokenizers.tokenizer import load_tokenizer
from pellucid.text.tokens.batches import BatchesError
from pellucid.text.tokens.pairs import prepare_pairs
from pellucid.text_model import Model
from pellucid.training.build import build_network
from pellucid.training.load import load_run
from pellucid.training.objectives import MicroBatch, encoded, logits_of, summed_loss, token_losses
from pellucid.training.recipe import differences, make_recipe, overlay, read_recipe_file
from pellucid.training.source_target import SourceTargetData

CPU = torch.device("cpu")
TINY = {**FIELDS, "objective": "source-target", "n_ctx": 24}


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path)


def recipe_for(path, preset_name="original", **fields):
    return make_recipe((str(path),), preset_name, {**TINY, **fields})


def start(path, out, sampler=None, **fields):
    return start_recipe(recipe_for(path, **fields), out, Heard(), sampler)


def tokens_of(run):
    split = split_pairs(read_pairs(run.recipe.inputs), run.recipe.text.held_out, run.recipe.train.seed)
    return prepare_pairs(split, load_tokenizer(run.path), cache_folder())


def data_of(run):
    """The data of a finished run, made again."""
    return SourceTargetData(tokens_of(run), run.recipe, CPU)


def exact(run):
    """The run's network before its first step, in float64 and without dropout."""
    return build_network(run.recipe, CPU).double().eval()


def test_what_is_read_and_what_is_predicted(pairs, tmp_path):
    """source + separator; separator + target; target + separator; the padding neither read nor scored."""
    run = start(pairs, tmp_path / "run", steps=1, batch=4, accumulate=1)
    data, tokenizer = data_of(run), load_tokenizer(run.path)
    given, separator = data.at(0, 0, 1), tokenizer.separator
    texts = dict(line.split("\t") for line in pairs.read_text().splitlines())
    for row in range(4):
        real = given.source[row] if given.real is None else given.source[row][given.real[row]]
        source = tokenizer.decode(real[:-1].tolist())
        target = tokenizer.encode(texts[source])
        n = len(target) + 1
        assert real[-1] == separator
        assert given.inputs[row, :n].tolist() == [separator, *target]
        assert given.targets[row][given.counts[row]].tolist() == [*target, separator]
    assert given.total == given.counts.sum()
    assert given.source.size(1) % 8 == 0
    assert (~given.counts).any()


def test_batches_are_a_function_of_seed_and_step(pairs, tmp_path):
    """Every pair comes once an epoch, in another order each time; parts of a step are its rows."""
    run = start(pairs, tmp_path / "run", steps=1, batch=3, accumulate=2)
    data = data_of(run)
    n = len(data.tokens.part("train").starts)
    drawn = np.concatenate([data.rows(step) for step in range(2 * n)])
    epochs = [drawn[k * n : (k + 1) * n] for k in range(6)]
    assert all(sorted(epoch) == list(range(n)) for epoch in epochs)
    assert (epochs[0] != epochs[1]).any()
    whole, parts = data.at(5, 0, 1), [data.at(5, k, 3) for k in range(3)]
    assert {part.total for part in parts} == {whole.total} == {int(whole.counts.sum())}
    assert torch.cat([p.targets[p.counts] for p in parts]).tolist() == whole.targets[whole.counts].tolist()
    other = SourceTargetData(tokens_of(run), with_seed(run.recipe, 5), CPU)
    assert (other.rows(0) != data.rows(0)).any()
    with pytest.raises(BatchesError, match="part 0 of 4"):
        data.at(0, 0, 4)


def with_seed(recipe, seed):
    return replace(recipe, train=replace(recipe.train, seed=seed))


def widened(given: MicroBatch, n_source: int, n_target: int) -> MicroBatch:
    """The same rows with more padding, other ids in it than before."""

    def wide(x, n, fill):
        return torch.nn.functional.pad(x, (0, n), value=fill)

    real = torch.ones_like(given.source, dtype=torch.bool) if given.real is None else given.real
    return replace(
        given,
        inputs=wide(given.inputs, n_target, 7),
        targets=wide(given.targets, n_target, 7),
        counts=wide(given.counts, n_target, False),
        source=wide(given.source.masked_fill(~real, 9), n_source, 9),
        real=wide(real, n_source, False),
    )


@pytest.mark.item("S4-encdec-a")
def test_padding_is_read_by_nobody(pairs, tmp_path):
    """Wider padding, with other ids in it, changes no scored loss; in float64 to 1e-12."""
    run = start(pairs, tmp_path / "run", steps=1, batch=4, accumulate=1)
    network, given = exact(run), data_of(run).at(0, 0, 1)
    wider = widened(given, 3, 2)
    with torch.no_grad():
        before, after = (token_losses(network, p)[p.counts] for p in (given, wider))
        assert (before - after).abs().max() < 1e-12
        assert torch.isfinite(network.encode(wider.source, None)).all()
        assert torch.isfinite(encoded(network, wider)["source"]).all()
        # and what is no padding is read
        moved = replace(given, source=(given.source + 1) % 256)
        assert (token_losses(network, moved)[given.counts] - before).abs().max() > 1e-6


def test_no_target_can_be_read_before_it_is_predicted(pairs, tmp_path):
    run = start(pairs, tmp_path / "run", steps=1, batch=4, accumulate=1)
    network, given = exact(run), data_of(run).at(0, 0, 1)
    with torch.no_grad():
        before = logits_of(network, given)
        given.inputs[:, 3:] = (given.inputs[:, 3:] + 1) % 250
        after = logits_of(network, given)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


def test_accumulated_passes_are_the_large_batch(pairs, tmp_path):
    """Whatever each is padded to, and weighted by what it scores: in float64 to 1e-12."""
    run = start(pairs, tmp_path / "run", steps=1, batch=3, accumulate=2)
    data, found = data_of(run), []
    for of in (1, 2, 6):
        network = exact(run)
        for micro in range(of):
            given = data.at(0, micro, of)
            (summed_loss(network, given) / given.total).backward()
        found.append({name: p.grad for name, p in network.named_parameters()})
    assert found[0]["encoder.embed.token.weight"].abs().max() > 0
    for other in found[1:]:
        for name, grad in found[0].items():
            assert torch.allclose(grad, other[name], rtol=0, atol=1e-12), name


def test_losses_are_nats_per_target_token_and_bits_per_byte_of_the_targets(pairs, tmp_path):
    run = start(pairs, tmp_path / "run", steps=4, evaluate_every=2, tokenizer="bpe", vocabulary=270)
    network, tokenizer, _ = load_run(run.path, "last", CPU)
    held = tokens_of(run).split
    total = count = n_bytes = 0
    for pair in held.numbers("held_out"):
        source, target = held.corpus.sources[pair], held.corpus.targets[pair]
        ids = [*tokenizer.encode(target), tokenizer.separator]
        with torch.no_grad():
            read = network.encode(torch.tensor([[*tokenizer.encode(source), tokenizer.separator]]))
            logits = network(torch.tensor([[tokenizer.separator, *ids[:-1]]]), source=read)[0]
        total -= logits.log_softmax(-1)[range(len(ids)), ids].sum().item()
        count, n_bytes = count + len(ids), n_bytes + len(target.encode())
    assert run.held_out_loss == pytest.approx(total / count, rel=1e-5)
    assert run.bits_per_byte == pytest.approx(total / math.log(2) / n_bytes, rel=1e-5)


def test_epochs_are_passes_over_the_pairs(pairs, tmp_path):
    fields = {**TINY, "evaluate_every": 50, "steps": 0, "epochs": 3, "n_layers": 1}
    run = start_recipe(make_recipe((str(pairs),), "original", fields), tmp_path / "run", Heard())
    n = len(tokens_of(run).part("train").starts)
    assert run.step == round(3 * n / 4)
    last = [row for row in rows(run.path) if "tokens" in row][-1]
    assert last["tokens"] == pytest.approx(3 * len(tokens_of(run).part("train")), rel=0.1)


def test_a_sample_is_a_held_out_source_and_its_target(pairs, tmp_path):
    from pellucid.generate.samples import sample_target

    run = start(pairs, tmp_path / "run", sample_target, steps=2, evaluate_every=2)
    [row] = [row for row in rows(run.path) if "sample" in row]
    split = tokens_of(run).split
    assert row["sample"].partition(" -> ")[0] == split.corpus.sources[split.numbers("held_out")[0]]


def test_nothing_is_written_for_pairs_that_do_not_fit(pairs, tmp_path):
    with pytest.raises(PairsError, match=r"pairs\.tsv:\d+.*model\.encoder\.n_ctx=10 and model\.n_ctx=10"):
        start(pairs, tmp_path / "run", n_ctx=8)
    assert not (tmp_path / "run").exists()


# The architecture -------------------------------------------------------------------------------


def test_the_encoder_follows_the_decoder_until_it_is_set(pairs):
    a = recipe_for(pairs, n_layers=4, n_heads=4).model
    assert (a.n_layers, a.encoder.n_layers) == (4, 4)
    assert (a.attention.mask, a.encoder.attention.mask) == ("causal", "bidirectional")
    assert (a.encoder.n_ctx, a.encoder.d_model, a.encoder.n_heads) == (24, 16, 4)
    for name in ("model.encoder.n_layers", "encoder.n_layers"):
        apart = recipe_for(pairs, **{"n_layers": 4, name: 1, "encoder.n_ctx": 50})
        assert (apart.model.n_layers, apart.model.encoder.n_layers, apart.model.encoder.n_ctx) == (4, 1, 50)
        # what was set apart stays so, in whatever order choices are repeated at --resume
        for again in ({"n_layers": 4}, {"encoder.n_layers": 1}, {"objective": "source-target", "n_heads": 2}):
            assert not differences(apart, overlay(apart, None, again, None))
        assert differences(apart, overlay(apart, None, {"n_layers": 3}, None)) == [
            "model.n_layers: 4 in the run, 3 asked for"
        ]


@pytest.mark.parametrize("name", ["small", "gpt2", "notes", "slides"])
def test_any_decoder_gets_an_encoder_of_its_own_kind(pairs, name):
    a = recipe_for(pairs, name).model
    assert a.encoder.positions == a.positions
    assert a.encoder.block == a.block
    assert a.encoder.attention.mask == "bidirectional"


def test_a_run_of_its_own_recipe_file(pairs, tmp_path):
    """recipe.json can be given as it is, encoder and all."""
    first = recipe_for(pairs, n_layers=3, **{"encoder.n_layers": 1})
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(first.to_dict()))
    assert "tokens_per_row" not in read_recipe_file(path)
    assert make_recipe((str(pairs),), "original", {}, path) == first


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"encoder.attention.mask": "causal"}, ArchitectureError, "expected bidirectional"),
        ({"attention.mask": "bidirectional"}, RecipeError, "needs model.attention.mask = causal"),
        ({"objective": "next-token"}, ArchitectureError, "give --objective source-target"),
        ({"encoder.n_layer": 2}, RecipeError, "did you mean 'n_layers'"),
        ({"encoder.d_model": 8}, ArchitectureError, "encoder.d_model"),
        ({"inside_documents": "yes"}, RecipeError, "inside_documents"),
        ({"block": "parallel"}, ArchitectureError, "where an encoder is read"),
    ],
)
def test_contradictions_are_refused(pairs, fields, error, message):
    with pytest.raises(error, match=message):
        recipe_for(pairs, **fields)


def test_an_encoder_that_is_not_there_cannot_be_set(pairs):
    with pytest.raises(ArchitectureError, match="there is no encoder"):
        make_recipe((str(pairs),), "small", {"encoder.n_layers": 2})


# What is learned --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.item("S4-io-b")
def test_reversal_is_learned(tmp_path):
    """Words never seen, backwards, exactly."""
    path = write_pairs(tmp_path, 3000)
    fields = {"d_model": 64, "n_heads": 4, "n_layers": 2, "dropout": 0.0, "tokenizer": "char", "batch": 64}
    fields |= {"accumulate": 1, "steps": 600, "evaluate_every": 300, "learning_rate": 2e-3, "sample_every": 0}
    run = start(path, tmp_path / "run", **fields)
    network, tokenizer, _ = load_run(run.path, "best", CPU)
    split = tokens_of(run).split
    sources = [split.corpus.sources[pair] for pair in split.numbers("held_out")]
    written = generate(Model(network, tokenizer), source=sources, max_tokens=12)
    right = np.mean([found.text == source[::-1] for found, source in zip(written, sources, strict=True)])
    print(f"{right:.1%} of {len(sources)} words right, {run.held_out_loss:.4f} nats per token")
    assert right > 0.9


@pytest.mark.slow
@pytest.mark.item("S4-io-b")
def test_reversal_is_learned_by_a_decoder_alone(tmp_path):
    """The same behind a separator, in plain text and by predicting the next token: words never seen, exactly.

    A line is a word, a bar and the word backwards; what is written behind the bar of a held-out word is compared.
    The prompt begins with the end of a line, as every line of the text but the first does.
    """
    random = np.random.default_rng(0)
    words = sorted({"".join(random.choice(list("abcdefghij"), 6)) for _ in range(6000)})
    random.shuffle(words)
    (tmp_path / "lines.txt").write_text("".join(f"{w}|{w[::-1]}\n" for w in words[:-200]))
    fields = {"d_model": 64, "n_heads": 4, "n_layers": 2, "n_ctx": 28, "ngrams": (), "tokenizer": "char"}
    fields |= {"batch": 64, "evaluate_every": 400, "sample_every": 0, "compile": "no"}
    run = pellucid.train(tmp_path / "lines.txt", out=tmp_path / "run", steps=1200, fields=fields)
    model = pellucid.load(run.path)
    written = model.generate_many([f"\n{w}|" for w in words[-200:]], max_tokens=6, temperature=0)
    right = np.mean([found.text == w[::-1] for found, w in zip(written, words[-200:], strict=True)])
    print(f"{right:.1%} of 200 words right")
    assert right > 0.9


def pronunciations(folder):
    """CMUdict's words of 12 letters or fewer, and what is said: one character for each of its 39 phonemes."""
    with zipfile.ZipFile(folder / "cmudict.zip") as archive:
        lines = archive.read("cmudict/cmudict").decode("latin-1").splitlines()
    phonemes = PHONEMES.split()
    for word, _, said in (line.split(" ", 2) for line in lines):
        if word.isalpha() and len(word) <= 12:
            yield word, "".join(chr(97 + phonemes.index(p.rstrip("012"))) for p in said.split())


PHONEMES = "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"


def edits(a, b):
    """The fewest insertions, deletions and substitutions that make b of a (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y)))
    return row[-1]


@pytest.mark.slow
def test_spelling_to_phonemes(needs_data, tmp_path):
    """Words never seen, said: phonemes wrong per phoneme, against the nearest pronunciation the dictionary has.

    12.2 % of phonemes wrong and 55 % of words right after 800 steps, 40 % of one pass over the dictionary; 11.6 %
    and 56 % with four beams. One to two minutes on one thread.
    """
    path = tmp_path / "cmudict.tsv"
    path.write_text("".join(f"{word}\t{said}\n" for word, said in pronunciations(needs_data)), encoding="utf-8")
    fields = {"d_model": 96, "n_heads": 4, "n_layers": 2, "dropout": 0.0, "tokenizer": "char", "batch": 64}
    fields |= {"accumulate": 1, "steps": 800, "evaluate_every": 400, "learning_rate": 2e-3, "sample_every": 0}
    run = start(path, tmp_path / "run", held_out=0.01, evaluate_tokens=2000, **fields)
    network, tokenizer, _ = load_run(run.path, "last", CPU)
    split, answers = tokens_of(run).split, {}
    for pair in split.numbers("held_out"):
        answers.setdefault(split.corpus.sources[pair], []).append(split.corpus.targets[pair])
    words = sorted(answers)[::4]
    rates = {}
    for beams in (1, 4):
        written = generate(Model(network, tokenizer), source=words, max_tokens=20, beams=beams)
        wrong = [
            min((edits(found.text, said), said) for said in answers[w]) for w, found in zip(words, written, strict=True)
        ]
        rates[beams] = sum(n for n, _ in wrong) / sum(len(said) for _, said in wrong)
        right = np.mean([n == 0 for n, _ in wrong])
        print(f"beams {beams}: {rates[beams]:.1%} of phonemes wrong, {right:.1%} of {len(words)} words right")
    assert rates[1] < 0.16
    assert rates[4] < rates[1] + 0.01


def test_a_sample_prompt_longer_than_the_encoder_s_context_is_refused(pairs, tmp_path):
    with pytest.raises(RecipeError, match=r"train\.sample_prompt has 2,\d{3} tokens as a source, and"):
        start(pairs, tmp_path / "run", steps=2, sample_prompt="word " * 500)
    assert not (tmp_path / "run").exists()
