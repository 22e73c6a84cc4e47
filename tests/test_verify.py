"""`verify` passes what is right, says what is wrong and what it did not compare; planted faults are in another file."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import pellucid
from drawing import make_network
from pellucid.cli import main
from pellucid.language_model import LanguageModel
from pellucid.model import Recorder
from pellucid.model.attention import MultiHeadAttention
from pellucid.model.kernels import ExplicitAttention
from pellucid.model.mask import Mask
from pellucid.model.norm import INNER, Identity
from pellucid.tensor_names import ROWS, names, row
from pellucid.text.tokenizers.bpe import BPETokenizer
from pellucid.text.tokenizers.tokenizer import SEPARATOR, ByteTokenizer, learn_tokenizer
from pellucid.text_model import Model, of_ids
from pellucid.verify import verify
from pellucid.verify.checks import check_save_and_load
from pellucid.verify.comparison import Subject, compare_tensors
from pellucid.verify.coverage import long_row_length
from planted import BASE, ROTARY, TWO_LISTS, unmask
from running import any_architectures, draw_tokens, with_encoder
from some_cases import one_in

ALWAYS = (
    "engine = reference",
    "gradient = reference",
    "later positions = reference",
    "masks up to n_ctx = reference",
    "a batch = its rows",
    "a tap changes nothing",
    "save -> load",
)


def broken(report):
    return {check.law for check in report.checks if check.holds is False}


def check_of(report, law):
    return next(check for check in report.checks if check.law == law)


# What is right ------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(any_architectures(), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_every_law_holds_for_what_is_right(a, dtype):
    report = verify(make_network(a, dtype=dtype))
    assert report.holds, report.text()
    assert report.exit_code == 0
    assert report.first is None
    assert {t.name for t in report.tensors} == {*names(a), "loss"}
    applies = {check.law for check in report.checks if check.holds}
    assert set(ALWAYS) <= applies
    forwards = a.attention.mask != "bidirectional"
    assert all((law in applies) == forwards for law in ("causality", "cached = uncached"))


@pytest.mark.parametrize("kind", one_in(3, ["bpe", "char", "byte"]))
def test_with_each_tokenizer(kind, shakespeare):
    tokenizer = learn_tokenizer(kind, [shakespeare[:5000]], 300 if kind == "bpe" else None)
    model = Model(make_network(replace(BASE, n_vocab=tokenizer.n_vocab)), tokenizer)
    report = verify(model, ["Speak, speak.", "", f"a {SEPARATOR} b"])
    assert report.holds, report.text()
    assert report.n_tokens[1] == 1
    assert check_of(report, "text -> tokens -> text").holds
    assert verify(model).holds


def test_the_network_is_left_as_it_was():
    network = make_network(BASE, dtype=torch.float32).train()
    network.blocks[1].eval()
    before, random = {n: p.clone() for n, p in network.named_parameters()}, torch.get_rng_state()
    verify(network)
    assert network.training
    assert network.blocks[0].training
    assert not network.blocks[1].training
    assert all(torch.equal(p, before[n]) and p.dtype == torch.float32 for n, p in network.named_parameters())
    assert torch.equal(torch.get_rng_state(), random)


def test_every_law_holds_for_texts_on_both_sides_of_the_border_of_longrope():
    a = BASE.with_fields(TWO_LISTS)
    assert a.frequency_border == 9
    report = verify(make_network(a, dtype=torch.float32))
    assert broken(report) == set()
    assert check_of(report, "cached = uncached").measured.startswith("4 ways to split 16 tokens")


def test_large_models_are_given_fewer_tokens(monkeypatch):
    assert verify(make_network(BASE)).n_tokens == (16, 16)
    monkeypatch.setattr(
        "pellucid.verify.coverage.PROMPT_COST", 5 * sum(p.numel() for p in make_network(BASE).parameters())
    )
    assert verify(make_network(BASE)).n_tokens == (5, 5)


def test_long_rows_are_cut_to_what_is_affordable():
    a = replace(BASE, n_ctx=5_000)
    assert long_row_length(a, 100_000) == 1024
    assert long_row_length(replace(a, n_ctx=700), 100_000) == 700
    assert long_row_length(a, 124_000_000) == 1024
    assert long_row_length(a, 10**9) == 130
    assert long_row_length(a, 10**12) == 2
    assert long_row_length(replace(a, n_vocab=2**18), 10**8) == 256


def test_parts_that_were_not_compared_are_listed(monkeypatch):
    always = "dropout, compiled graphs and steps, int8 and int4 products"
    assert verify(make_network(BASE)).uncovered == (always,)
    monkeypatch.setattr("pellucid.verify.coverage.MAX_ROW_TOKENS", 60)
    monkeypatch.setattr("pellucid.verify.windows.MAX_KEYS", 90)
    a = BASE.with_fields({"n_ctx": 100, "attention.windows": (0, 64, 70), "n_layers": 3})
    report = verify(make_network(a, dtype=torch.float32))
    assert report.holds
    assert check_of(report, "a long row = reference").measured.startswith("60 tokens and through a cache, ")
    assert report.uncovered == (
        "more than 60 tokens in a row",
        "attention across windows of 64, 70 tokens, but for our masks",
        "21 of the 40 positions from 60 on",
        "masks of more than 90 keys",
        always,
    )
    shown = " ".join(report.text().split())
    assert all(f"not compared: {line}" in shown for line in report.uncovered)
    assert json.loads(report.to_json())["uncovered"] == list(report.uncovered)


def test_a_network_that_cannot_run_breaks_its_laws_and_nothing_more():
    class Raising(Mask):
        def between(self, q, k, given=None):
            raise IndexError("index 48 is out of range")

    network = make_network(BASE)
    network.blocks[0].attn.mask.__class__ = Raising
    report = verify(network)
    assert report.exit_code == 1
    assert check_of(report, "engine = reference").measured == "IndexError: index 48 is out of range"
    assert check_of(report, "a batch = its rows").holds is None


def test_progress_names_the_laws():
    told = []
    report = verify(make_network(BASE), progress=told.append)
    assert told == [check.law for check in report.checks][1:]


def test_prompts_of_a_model_without_a_tokenizer_are_ids():
    assert verify(make_network(BASE), ["1 2 3"]).n_tokens == (3,)
    for prompts, expected in ((["text"], "'text' is not a token id"), ([], "expected at least one text")):
        with pytest.raises(ValueError, match=expected):
            verify(make_network(BASE), prompts)


# Faults in what is computed -----------------------------------------------------------------------

COVERING = [
    BASE.with_fields(
        {"embed_norm": "norm", "mlp.form": "gated", "n_segments": 2, "d_embed": 6, "embed_projection": "sum"}
    ),
    BASE.with_fields({"mlp.n_hidden": 2, "block": "parallel", "ngrams": (2, 3), "ngram_rows": 7} | ROTARY),
    BASE.with_fields({"block": "post"}),
    BASE.with_fields({"block": "sandwich"}),
    with_encoder(BASE.with_fields({"n_layers": 1})),
    BASE.with_fields({"n_layers": 1, "mlp.form": "gated", "mlp.experts": 2, "mlp.shared_d_ff": 3}),
]


@pytest.mark.parametrize("a", one_in(3, COVERING), ids=["gated", "parallel", "post", "sandwich", "encoder", "experts"])
def test_a_fault_in_any_tensor_is_named(a, monkeypatch):
    """Every name in turn is moved by a millionth: it, and nothing before it, is found."""
    network = make_network(a)
    subject = Subject(of_ids(network), network, (), (draw_tokens(a, 1, 3),))
    for name in names(a):
        moved = {name: [lambda x: x + 1e-6 * torch.ones_like(x).cumsum(-1)]}
        with monkeypatch.context() as patch:
            patch.setattr("pellucid.verify.comparison.Recorder", lambda keep, moved=moved: Recorder(keep, moved))
            found = compare_tensors(subject)
        assert next(t.name for t in found if not t.small) == name


def test_those_are_all_the_tensors_there_are():
    assert {row(name).name for a in COVERING for name in names(a)} == ROWS.keys() - {"probs", "loss"}


def test_a_shared_head_read_by_the_wrong_queries_is_found():
    """Query head h reads head h mod n_kv_heads."""

    class Mixed(ExplicitAttention):
        def pattern(self, q, k, mask, tap):
            mixed = copy.copy(self)
            mixed.group = 1
            return ExplicitAttention.pattern(mixed, q, k.repeat(1, self.group, 1, 1), mask, tap)

    network = make_network(BASE.with_fields({"attention.n_heads": 4, "attention.n_kv_heads": 2}))
    network.blocks[1].attn.explicit.__class__ = Mixed
    assert verify(network).first == "blocks.1.attn.scores"


# Faults that the comparison does not see, or not alone ---------------------------------------------


class Halved(torch.autograd.Function):
    """What it reads, whose gradient is half of what it should be."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        return grads[0] / 2


class HalfLearned(MultiHeadAttention):
    """The right output, from a backward pass written wrongly."""

    def forward(self, x, *rest, **reading):
        return Halved.apply(super().forward(x, *rest, **reading))


def test_a_wrong_backward_pass_breaks_the_gradient_alone():
    network = make_network(BASE)
    network.blocks[1].attn.__class__ = HalfLearned
    report = verify(network)
    assert broken(report) == {"gradient = reference"}
    assert report.first is None
    assert report.exit_code == 1
    # the block's MLP and what follows learn rightly; its attention's last map is where it begins
    assert check_of(report, "gradient = reference").measured.startswith("blocks.1.attn.out.bias: ")


def test_the_weight_whose_gradient_is_wrong_is_named():
    class Unlearned(nn.Linear):
        def forward(self, input):
            return F.linear(input, Halved.apply(self.weight), self.bias)

    network = make_network(BASE)
    network.blocks[1].mlp.up[0].__class__ = Unlearned
    measured = check_of(verify(network), "gradient = reference").measured
    assert measured.startswith("blocks.1.mlp.up.0.weight: ")
    assert "; 1 of " in measured


def test_a_given_mask_that_is_forgotten_is_found():
    class Forgetful(Mask):
        def forward(self, n_queries, n_keys, given, like):
            return super().forward(n_queries, n_keys, None, like)

        def is_causal(self, n_queries, n_keys, given):
            return super().is_causal(n_queries, n_keys, None)

    network = make_network(BASE)
    network.blocks[1].attn.mask.__class__ = Forgetful
    report = verify(network)
    assert broken(report) == {"masks up to n_ctx = reference", "a batch = its rows"}
    assert {check_of(report, law).first for law in broken(report)} == {"blocks.1.attn.scores"}


def test_no_gradient_of_what_is_too_large(monkeypatch):
    monkeypatch.setattr("pellucid.verify.checks.MAX_GRADIENT_PARAMETERS", 100)
    report = verify(make_network(BASE))
    assert report.holds
    assert check_of(report, "gradient = reference").measured == "not taken of more than 100 parameters"


@pytest.mark.parametrize("a", [BASE, BASE.with_fields({"mlp.form": "gated", "mlp.experts": 2})], ids=["mlp", "experts"])
def test_a_leak_breaks_causality(a):
    network = make_network(a)
    unmask(network)
    report = verify(network)
    assert {"engine = reference", "causality"} <= broken(report)
    assert check_of(report, "causality").measured == "tokens from position 1 on change the logits of position 0"


def test_a_tap_that_changes_the_computation_is_found(monkeypatch):
    """Writing a norm out gives its last digits another rounding: equal for any tolerance, not bitwise."""

    choose_rightly = Recorder.choose

    def choose(self, names, fused, written, seen=None):
        return written(self) if names == INNER else choose_rightly(self, names, fused, written, seen)

    monkeypatch.setattr(Recorder, "choose", choose)
    assert broken(verify(make_network(BASE, dtype=torch.float32))) == {"a tap changes nothing"}


class Lossy(ByteTokenizer):
    def decode(self, ids, *, errors="replace"):
        return super().decode(ids).lower()


class Forged(ByteTokenizer):
    def _encode(self, text):
        return [self.separator] if text == SEPARATOR else super()._encode(text)


class Unstable(ByteTokenizer):
    def _encode(self, text):
        return super()._encode(text)[::-1]

    def decode(self, ids, *, errors="replace"):
        return super().decode(list(ids)[::-1])


TOKENIZER_FAULTS = {
    "case lost": (Lossy(), "text -> tokens -> text", "'ABC' comes back as 'abc'"),
    "separator typed": (Forged(), "text -> tokens -> text", "'<|endoftext|>' yields a special id"),
    "not what its file says": (Unstable(), "save -> load", "the loaded tokenizer gives other ids"),
}


@pytest.mark.parametrize(("tokenizer", "law", "measured"), TOKENIZER_FAULTS.values(), ids=TOKENIZER_FAULTS.keys())
def test_faults_of_the_tokenizer(tokenizer, law, measured):
    report = verify(Model(make_network(BASE), tokenizer), ["ABC", SEPARATOR])
    assert law in broken(report)
    assert check_of(report, law).measured == measured


def test_more_ids_than_rows():
    report = verify(Model(make_network(replace(BASE, n_vocab=200)), ByteTokenizer()))
    assert check_of(report, "text -> tokens -> text").measured == "257 ids for an embedding of 200 rows"
    assert broken(report) == {"text -> tokens -> text"}


def test_characters_outside_the_vocabulary_are_said():
    tokenizer = learn_tokenizer("char", ["abc"])
    model = Model(make_network(replace(BASE, n_vocab=tokenizer.n_vocab)), tokenizer)
    assert check_of(verify(model, ["abc", "xyz"]), "text -> tokens -> text").measured == (
        "1 of 2 prompts came back exactly; 1 with characters outside the vocabulary"
    )
    assert check_of(verify(model, ["xyz"]), "text -> tokens -> text").holds is None


def test_weights_that_are_not_numbers():
    network = make_network(BASE)
    with torch.no_grad():
        network.blocks[1].attn.key.weight[0, 0] = torch.nan
    report = verify(network)
    assert report.first == "blocks.1.attn.k"
    assert "entries are not finite" in report.text()
    json.loads(report.to_json())


def test_parameters_that_are_not_the_architecture_s():
    network = make_network(BASE)
    network.final_norm = Identity()
    report = verify(network)
    assert check_of(report, "engine = reference").measured.startswith("the weight 'final_norm.gain'")
    assert check_of(report, "save -> load").measured.startswith("model.safetensors and the architecture differ")
    assert report.exit_code == 1
    assert "broken: engine = reference; save -> load" in report.text()


# What a person sees -------------------------------------------------------------------------------


def test_the_report_fits_a_terminal_and_is_json():
    network = make_network(BASE)
    for fault in (None, unmask):
        if fault:
            fault(network)
        report = verify(Model(network, ByteTokenizer()))
        for tensors in (False, True):
            shown = report.text(tensors=tensors)
            assert max(map(len, shown.splitlines())) <= 80
            assert "..." not in shown.replace("\u2026", "...")
        read = json.loads(report.to_json())
        assert read["holds"] == report.holds == (fault is None)
        assert [t["name"] for t in read["tensors"]] == [t.name for t in report.tensors]
        assert len(read["checks"]) == 11


def test_the_command(tmp_path, capsys, monkeypatch):
    folder = LanguageModel(make_network(BASE, dtype=torch.float32), ByteTokenizer(), {}).save(tmp_path / "model")
    assert main(["verify", str(folder)]) == 0
    assert "every law that applies holds" in capsys.readouterr().out
    assert main(["verify", str(folder), "--json", "--prompt", "one", "--prompt", "two"]) == 0
    assert json.loads(capsys.readouterr().out)["n_tokens"] == [3, 3]
    load = pellucid.load

    def faulty(*args, **options):
        loaded = load(*args, **options)
        unmask(loaded.network)
        return loaded

    monkeypatch.setattr(pellucid, "load", faulty)
    assert main(["verify", str(folder), "--tensors"]) == 1
    assert "first tensor that differs: blocks.0.attn.scores" in capsys.readouterr().out


def test_a_model_without_a_tokenizer_is_saved_and_loaded():
    """The stand-in for a tokenizer has no file; ids are checked all the same."""
    network = make_network(BASE)
    subject = Subject(of_ids(network), network, ("1 2 3",), (torch.tensor([[1, 2, 3]]),))
    result = check_save_and_load(subject)
    assert result.holds, result.measured


def test_a_tokenizer_that_was_opened_with_trust_is_read_back():
    content = json.loads(learn_tokenizer("bpe", ["to be or not to be"], 260).to_json())
    split = {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": False}
    plain = content["pre_tokenizer"] | {"use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, plain]}
    tokenizer = BPETokenizer(json.dumps(content), trust=True)
    network = make_network(BASE.with_fields({"n_vocab": tokenizer.n_vocab}))
    ids = torch.tensor([tokenizer.encode("to be")])
    result = check_save_and_load(Subject(Model(network, tokenizer), network, ("to be",), (ids,)))
    assert result.holds, result.measured
