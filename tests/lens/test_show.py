"""Figures: one file that fetches nothing, whose numbers are the trace's, and in which no token's text is markup."""

import base64
import gzip
import json
import math
import re
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import difference, make_network
from pellucid import edits as change
from pellucid.architecture import Architecture
from pellucid.cli import main
from pellucid.language_model import LanguageModel
from pellucid.lens import Circuits, InputError, trace
from pellucid.lens.analysis.ablation import ablate
from pellucid.lens.analysis.heads import detect_heads, head_scores
from pellucid.lens.analysis.metrics import logit_diff
from pellucid.lens.analysis.patching import patch
from pellucid.lens.show import Figure, attention
from pellucid.lens.show.figure import STYLES, asset, script
from pellucid.lens.show.pages import inspect_page
from pellucid.lens.show.panels import attribute_everywhere
from pellucid.text.tokenizers.tokenizer import learn_tokenizer
from pellucid.text_model import Model, of_ids
from running import any_architectures, arrays_of, draw_tokens, source_tokens, with_encoder

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=2).with_fields({"attention.n_heads": 2})
HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>\u2028 &amp; ]]>"


def data_of(page):
    """What the page's script is handed."""
    text = re.search(r'<script type="text/plain" id="figure">([A-Za-z0-9+/=]*)</script>', page)[1]
    return json.loads(gzip.decompress(base64.b64decode(text)))


def look(network, n=5):
    a = network.architecture
    given_ = {} if a.encoder is None else {"source": source_tokens(a, 1)}
    return trace(of_ids(network), draw_tokens(a, 1, n), **given_)


@settings(deadline=None, max_examples=12)
@given(any_architectures({"n_ctx": 8}))
def test_the_page_holds_the_trace_s_numbers(a):
    """Surprisal, guesses, patterns, lens and attribution of any architecture; what it lacks is a note."""
    t = look(make_network(a))
    figure = inspect_page(t)
    data = data_of(figure.html)
    assert data == json.loads(json.dumps(figure.data))
    tokens, *attentions, lens, attribution, heads = data["panels"]
    assert data["tokens"] == [token["text"] for token in tokens["tokens"]] == t.tokens
    assert [[token["text"] for token in tokens["source"]]] == (t.source_tokens or [[]])
    assert [panel["part"] for panel in attentions] == (["attn"] if a.encoder is None else ["encoder", "attn", "cross"])
    probability = t.probs[0].float()
    best = [row[0] for row in tokens["top"]]
    assert difference(torch.tensor([one["p"] for one in best]), probability.amax(-1)) <= 1e-6
    assert [one["id"] for one in best] == t.logits[0].float().argmax(-1).tolist()
    if a.attention.mask == "bidirectional":
        assert "surprisal" not in tokens
    else:
        assert tokens["surprisal"][0] is None
        assert difference(torch.tensor(tokens["surprisal"][1:]), t.surprisal()[0].float()) <= 1e-4
        assert attribution["target"][:-1] == t.tokens[1:]
    for panel in attentions:
        scope = {"attn": "blocks.{}.attn", "encoder": "encoder.blocks.{}.attn", "cross": "blocks.{}.cross"}[
            panel["part"]
        ]
        tiles = arrays_of(panel)["tiles"].float()
        assert len(tiles) == (a.encoder.n_layers if panel["part"] == "encoder" else a.n_layers)
        for l, found in enumerate(tiles):
            pattern = t[scope.format(l) + ".pattern"][0].float()
            assert found.shape == pattern.shape
            assert (found / 255 - pattern.sqrt()).abs().max() <= 0.5 / 255 + 1e-6
    expected, stats = t.lens(mid=False), arrays_of(lens)["stats"]
    assert (
        difference(stats[list(lens["stats"]).index("kl")], (expected.kl[:, 0] / np.log(2)).float().clamp(min=0)) <= 1e-5
    )
    assert len(heads["rows"]) == a.n_layers * a.n_heads
    for column, kind in ((1, "previous"), (2, "first"), (3, "duplicate"), (4, "induction")):
        expected = head_scores(t).scores[kind].nan_to_num(0).flatten()
        assert difference(torch.tensor([row[column] or 0 for row in heads["rows"]]), expected.float()) <= 1e-3
    assert attribution["kind"] == "attribution"
    assert ("before the cap" in attribution["held"]) == (a.logit_cap > 0)
    assert (heads["columns"][-1] == "copying") == (a.readout != "bert")


def test_a_row_of_a_batch_is_shown_as_the_text_alone():
    """Also beside a longer text, whose length pads it."""
    model = of_ids(make_network(A))
    both, alone = trace(model, [[1, 2, 3, 1, 2, 3, 4], [5, 6, 5, 6]]), trace(model, [5, 6, 5, 6])
    panels = ["tokens", "attention", "lens", "attribution", "heads"]
    for one, other in zip(both.show(panels, row=1).panels, alone.show(panels).panels, strict=True):
        sent, expected = (arrays_of(panel) if "arrays" in panel else {} for panel in (one, other))
        for name in expected:
            assert difference(sent[name].float().nan_to_num(-1), expected[name].float().nan_to_num(-1)) <= 1e-5, name
        assert close({**one, "arrays": 0}, {**other, "arrays": 0}), one["kind"]


def close(one, other):
    """Whether two answers are equal but for rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) if isinstance(one, float) else one == other


@pytest.mark.item("S4-fig-a")
@settings(deadline=None, max_examples=20)
@given(any_architectures({"n_ctx": 8}))
def test_attributions_sum_to_the_logit_above_the_average(a):
    t = look(make_network(a))
    labels, values, target = attribute_everywhere(t, 0)
    assert len(labels) == len(values)
    logits = t.logits_before_cap()[0]
    expected = logits.gather(-1, target[:, None])[:, 0] - logits.mean(-1)
    assert difference(values.sum(0), expected) <= 1e-10
    one = t.attribute(int(target[2]), pos=2, by="head")
    if "final_norm.bias" not in labels:
        # the mean over the vocabulary is taken off every part
        every = torch.stack([t.attribute(v, pos=2, by="head").values for v in range(a.n_vocab)])
        assert one.labels == labels
        assert difference(values[:, 2], one.values - every.mean(0)) <= 1e-10


@pytest.mark.parametrize("name", ["final_norm", "final_norm.normalized", "logits"])
def test_attributions_of_an_edited_readout_sum_to_its_logit(name):
    t = trace(of_ids(make_network(A)), draw_tokens(A, 1, 5), edits=[change.scale(name, 0.5, pos=slice(1, None))])
    labels, values, target = attribute_everywhere(t, 0)
    expected = t.logits[0].gather(-1, target[:, None])[:, 0] - t.logits[0].mean(-1)
    assert labels[-1] == "readout (edited)"
    assert difference(values.sum(0), expected) <= 1e-10
    assert values[-1, 0].abs() <= 1e-10 < values[-1, 1].abs()


def test_the_heading_is_the_text_without_what_was_put_before_it():
    """Also where a character is split over tokens, and where an encoder-decoder's target begins with the separator."""
    tokenizer = learn_tokenizer("byte", ["a"], None)
    a = A.with_fields({"n_vocab": tokenizer.n_vocab, "n_ctx": 32})
    t = trace(Model(make_network(a), tokenizer), "na\u00efve \u65e5", bos=True)
    assert inspect_page(t).title == "\u201cna\u00efve \u65e5\u201d"
    read = trace(Model(make_network(with_encoder(a)), tokenizer), "to", source="be")
    assert inspect_page(read).title == "\u201cto\u201d"
    assert [token["text"] for token in inspect_page(read).panels[0]["source"]] == ["b", "e", "<|endoftext|>"]


def test_no_text_of_a_token_is_markup():
    figure = Figure(HOSTILE, [{"kind": "note", "title": HOSTILE, "text": HOSTILE}], tokens=[HOSTILE, "\ud800"])
    assert data_of(figure.html)["tokens"] == [HOSTILE, "\ud800"]
    assert figure.html.count("<script") == 2
    assert "<img" not in figure.html
    assert "<img" not in figure._repr_html_()
    assert figure._repr_html_().count('"') == 8  # four attributes, and no quote in them
    figure.html.encode("utf-8")


def test_pages_fetch_nothing_and_are_small(tmp_path):
    figure = inspect_page(look(make_network(A)))
    page = figure.save(tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert page == figure.html
    assert "default-src 'none'" in page
    for way_out in ("http:", "https:", "//cdn", "@import", "url(", "src=", "fetch(", "<link"):
        assert way_out not in page.replace("http://www.w3.org/", ""), way_out
    assert "innerHTML" not in page.replace(asset("preact.js").rpartition("export{")[0], "")
    assert not re.search(r"^(import|export) ", script(), re.MULTILINE)
    assert len(script()) + sum(len(asset(name)) for name in STYLES) <= 115_000
    assert figure.html == inspect_page(look(make_network(A))).html


def test_every_kind_of_panel_is_drawn():
    drawn = set(re.findall(r"^  (\w+): \w+,$", asset("saved.js").partition("const PANELS = {")[2], re.MULTILINE))
    network = make_network(A)
    t, circuits = look(network), Circuits(of_ids(network))
    figures = [
        inspect_page(t),
        t.show(["tokens", "lens"]),
        t.attribute(3).show(),
        detect_heads(of_ids(network)).show(),
        circuits.show(),
        circuits[0, 1].show(),
        circuits.compose("K").show(),
        Circuits(of_ids(make_network(A.with_fields({"positions.kind": "rotary"}))))[0, 0].show(offset=2),
        Circuits(of_ids(make_network(A.with_fields({"readout": "bert"}))))[0, 0].show(),
    ]
    used = {panel["kind"] for figure in figures for panel in figure.panels}
    assert used == drawn - {"lesson"}  # which the lessons of the documentation add
    assert all(figure.html for figure in figures)
    with pytest.raises(InputError, match="no panel 'nothing'"):
        t.show(["nothing"])
    with pytest.raises(InputError, match="row 1"):
        t.show(row=1)


def test_the_table_of_heads_says_what_its_numbers_are():
    panel = detect_heads(of_ids(make_network(A)), kinds=("previous", "entropy")).show().panels[0]
    assert panel["columns"] == ["head", "previous", "entropy, bits"]
    assert panel["bars"] == [None, "share", "size"]
    assert panel["note"].endswith(". Shares of attention; the entropy is in bits.")
    panel = detect_heads(of_ids(make_network(A)), kinds=("entropy",)).show().panels[0]
    assert panel["note"].endswith(", twice. The entropy is in bits.")


def test_experiments_are_drawn_with_their_numbers():
    """Patching by position and by head, ablation by head and by block, and the scores of a query."""
    network = make_network(A)
    clean, corrupt = [1, 2, 3, 4], [1, 5, 3, 6]
    found = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), mode="both")
    panel = found.show().panels[0]
    assert difference(arrays_of(panel)["values"], found.recovered.float()) <= 1e-6
    assert (panel["rows"], panel["columns"]) == (["block 0", "block 1"], ["1", "5", "3", "6"])
    assert panel["places"] == [0, 1, 2, 3]
    assert f"{found.agreement['correlation']:.3g}" in panel["note"]
    found = patch(of_ids(network), clean, corrupt, logit_diff(3, 5), site="attn.z", positions="all", layers=[1])
    panel = found.show().panels[0]
    assert (panel["rows"], panel["columns"]) == (["1.0", "1.1"], ["all positions"])
    assert difference(arrays_of(panel)["values"][:, 0], found.recovered[0, 0].float()) <= 1e-6
    with pytest.raises(InputError, match="nothing to recover"):
        patch(of_ids(network), clean, clean, logit_diff(3, 5)).show()
    lost = ablate(of_ids(network), [clean, corrupt], logit_diff(3, 5), kind="zero")
    assert difference(arrays_of(lost.show().panels[0])["values"], lost.effect.float()) <= 1e-6
    lost = ablate(of_ids(network), [clean, corrupt], logit_diff(3, 5), site="mlp_out")
    assert difference(torch.tensor(lost.show().panels[0]["values"]), lost.effect.float()) <= 1e-3
    why = trace(of_ids(network), clean).why(1, 0)
    panel, scores = why.show().panels
    assert difference(arrays_of(panel)["values"].sum(0), why.scores.float()) <= 1e-5
    assert difference(torch.tensor(scores["values"]), why.scores.float()) <= 1e-3
    assert panel["columns"] == scores["labels"] == ["1", "2", "3", "4"]


#: how colours are seen without the long, middle and short cones, in linear RGB: Machado et al. 2009, severity 1
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
}


def lab(hexadecimal, sight):
    """CIELAB of a colour of the style sheet as somebody sees it."""
    rgb = np.array([int(hexadecimal[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(BLINDNESS[sight]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    f = np.cbrt(np.maximum(to_xyz @ seen / [0.9505, 1, 1.089], 216 / 24389))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", BLINDNESS)
@pytest.mark.parametrize("theme", [0, 1])
def test_ramps_can_be_read_without_some_cones(sight, theme):
    """Amounts go one way in lightness; both signs differ from each other and from nothing, light and dark."""
    sheet = asset("common.css").split('[data-theme="dark"]')
    colour = {name: lab(value, sight) for name, value in re.findall(r"--(\w+): (#[0-9a-f]{6})", sheet[theme])}
    steps = np.diff([colour[name][0] for name in ("low", "mid", "high")])
    assert (np.abs(steps) >= 15).all()
    assert steps[0] * steps[1] > 0
    for one, other in (("negative", "positive"), ("negative", "zero"), ("positive", "zero")):
        assert np.linalg.norm(colour[one] - colour[other]) >= 30, (one, other)
    assert abs(colour["text"][0] - colour["ground"][0]) >= 60


def test_both_themes_have_every_colour_and_the_button_decides():
    """The style sheet goes by what the page's script sets alone: the system's wish is where the script begins."""
    sheet = asset("common.css")
    light, dark = (set(re.findall(r"--(\w+): #", part)) for part in sheet.split('[data-theme="dark"]'))
    assert light == dark
    assert len(light) >= 12
    assert "prefers-color-scheme" not in sheet
    assert 'matchMedia("(prefers-color-scheme: dark)")' in asset("common.js")


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 99))
def test_long_patterns_keep_the_largest_of_each_cell(n, side, seed):
    pattern = torch.rand(2, n, n, generator=torch.Generator().manual_seed(seed))
    cell = attention.cell_of(n, side)
    found = attention.companded(pattern, cell)
    i, j = n - 1, n // 2
    block = pattern[:, i // cell * cell :, j // cell * cell : (j // cell + 1) * cell]
    largest = (255 * block.amax((1, 2)).sqrt()).round()
    assert torch.equal(found[:, i // cell, j // cell].float(), largest)
    assert 144 * attention.side_of(144, 2048) ** 2 <= attention.PATTERN_BYTES


def test_the_command_writes_a_page(tmp_path, capsys, monkeypatch):
    tokenizer = learn_tokenizer("char", ["to be or not to be"])
    network = make_network(A.with_fields({"n_vocab": tokenizer.n_vocab, "n_ctx": 16}), dtype=torch.float32)
    LanguageModel(network, tokenizer, {}).save(tmp_path / "model")
    page = tmp_path / "page.html"
    assert main(["inspect", str(tmp_path / "model"), "to be", "-o", str(page), "--device", "cpu"]) == 0
    assert "5 tokens" in capsys.readouterr().out
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["tokens"] == list("to be")
    assert data["title"] == "\u201cto be\u201d"
    before = page.read_bytes()

    missing = tmp_path / "of mine" / "1" / "page.html"
    command = ["inspect", str(tmp_path / "model"), "to be", "-o", str(missing), "--device", "cpu"]
    assert main(command) == 2
    assert f"make it first: mkdir -p '{missing.parent}'" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, code in (("", 2), ("n", 2), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: print(question) or answer)
        assert not missing.parent.exists()
        assert main(command) == code
        assert f"make the folder {missing.parent}? [y/N]" in capsys.readouterr().out
    assert missing.read_bytes() == before

    assert main(["inspect", str(tmp_path / "model"), "", "-o", str(page), "--device", "cpu"]) == 2
    assert "has no token: give some text" in capsys.readouterr().err
    assert page.read_bytes() == before
    assert main(["inspect", str(tmp_path / "model"), "to be" * 9, "-o", str(page), "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "This text has 45 tokens; this model reads 16: the last 16 are shown." in shown.err
    assert "16 tokens" in shown.out
    assert data_of(page.read_text(encoding="utf-8"))["tokens"] == list(("to be" * 9)[-16:])
