"""What the pages Attention, Stream and Circuits show is what their own code, copied as Python, gives."""

import math

import pytest
import torch
from tests.look.families import FAMILIES, QUICK, random_model, trace_of

import pellucid.look.attention as attention
import pellucid.look.circuits as look_circuits
import pellucid.look.stream as stream
from pellucid import edits
from pellucid.lens import InputError
from pellucid.lens.analysis.heads import Heads
from pellucid.lens.weights.circuit_weights import CircuitError

EVERY = [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in FAMILIES]


@pytest.fixture(scope="module", params=EVERY)
def model(request):
    return random_model(request.param)


@pytest.fixture(scope="module")
def t(model):
    return trace_of(model)


def run_code(panel, **names):
    """What the code of a panel leaves behind."""
    exec(panel["code"], names)
    return names


def assert_same(shown, computed):
    """Numbers of a panel, with None for what JSON cannot hold, are those of a tensor."""
    computed = torch.as_tensor(computed).double()
    shown = torch.tensor(_numbers(shown), dtype=torch.float64).reshape(computed.shape)
    assert torch.equal(shown.nan_to_num(0, 0, 0), computed.nan_to_num(0, 0, 0))


def _numbers(values):
    return [_numbers(v) for v in values] if isinstance(values, list) else math.nan if values is None else values


# Attention ----------------------------------------------------------------------------------


def test_the_overview_has_the_scores_and_the_thumbnails_of_every_part(t):
    for part in attention.attention_parts(t):
        panel, *layers = attention.attention_overview(t, part["part"])
        copying = layers.pop() if part["part"] == "attn" else {}
        scores = run_code(panel, trace=t)["scores"]
        assert {*scores} == {*panel["kinds"]}
        for line in layers:
            for kind, values in scores.items():
                assert_same(line["scores"][kind], values[line["layer"]])
            pattern = t[attention.pattern_name(part["part"], line["layer"])][0]
            assert list(pattern.shape) == [panel["heads"], len(panel["queries"]), len(panel["keys"])]
            assert line["tiles"].dtype == torch.uint8
            assert [len(layers), *line["tiles"].shape] == panel["shape"]
            assert (line["tiles"].double() / 255 - pattern.sqrt()).abs().max() <= 0.5 / 255 + 1e-6
        assert len(layers) == part["layers"]
        assert {*copying} <= {"copying", "copying_reason"}
        assert len(copying) == (part["part"] == "attn")
    panel, line, *_ = attention.attention_overview(t, "attn", 4)
    n = len(panel["queries"])
    assert panel["shape"][2:] == [-(-n // -(-n // 4))] * 2 == list(line["tiles"].shape[1:])


@pytest.mark.parametrize("view", ["pattern", "scores", "value", "difference", "virtual"])
def test_a_matrix_is_what_its_code_gives(t, model, view):
    other = trace_of(model, "a dog and a dog")
    for part in attention.attention_parts(t):
        if view == "virtual" and part["part"] == "cross":
            continue
        matrix = attention.attention_matrix(t, part["part"], 1, 2, view, other, (0, 3))
        panel = attention.matrix_panel_of(t, part["part"], 1, 2, view, (0, 3))
        assert torch.equal(matrix, run_code(panel, trace=t, other=other)["matrix"])
        assert panel["not_shown"]


@pytest.mark.parametrize("side", ["key", "query", "pair"])
@pytest.mark.parametrize("by", ["component", "head"])
def test_the_reasons_sum_to_the_score(t, side, by):
    for part in attention.attention_parts(t):
        panel = attention.attention_reasons(t, part["part"], 1, 2, 5, 3, side=side, by=by, k=4)
        ran = run_code(panel, trace=t)
        parts = dict(zip(ran["parts"].labels, ran["values"].tolist(), strict=True))
        assert all(row["value"] == parts[row["label"]] for row in panel["parts"][:4])
        assert abs(sum(row["value"] for row in panel["parts"]) - panel["score"]) <= 1e-9
        compared = ran["values"] - (ran["parts"].values.sum(1) - ran["values"]) / (len(panel["keys"]) - 1)
        assert abs(panel["parts"][0]["compared"]) == pytest.approx(float(compared.abs().max()), rel=1e-9)
        name = attention.pattern_name(part["part"], 1)
        assert panel["attention"] == float(t[name][0, 2, 5, 3])


def test_a_head_is_named_above_the_threshold_alone():
    scores = {"induction": torch.tensor([[0.39, 0.5, 0.1]]), "previous": torch.tensor([[0.1, 0.9, 0.2]])}
    heads = Heads("", scores | {"first": torch.tensor([[0.2, 0.1, math.nan]])})
    labels = attention.labels_panel(heads)
    assert [(row["head"], row["name"], round(row["score"], 3)) for row in labels["labels"]] == [
        (1, "previous token", 0.9)
    ]
    assert labels["threshold"] == 0.4


def test_the_code_of_labels_gives_the_scores_of_labels():
    model = random_model("gpt2")
    with torch.no_grad():
        model.network.blocks[0].attn.query.weight.mul_(0)
        model.network.blocks[0].attn.query.bias.mul_(0)
    panel = attention.labels_panel(model.heads(kinds=attention.LABEL_KINDS))
    scores = run_code(panel, model=model)["scores"]
    assert {*scores} == {*attention.LABEL_KINDS}
    for row in panel["labels"]:
        assert row["score"] == scores[row["kind"]][row["layer"], row["head"]]


def test_questions_of_attention_without_an_answer_say_why():
    model = random_model("gpt2")
    t, longer = trace_of(model), trace_of(model, "a cat and a cat and")
    for question, reason in [
        (lambda: list(attention.attention_overview(t, "cross")), "this model has attn"),
        (lambda: attention.attention_matrix(t, "attn", 9, 0), "there are 3 of 4"),
        (lambda: attention.attention_matrix(t, "attn", 1, 0, "difference"), "needs a second prompt"),
        (lambda: attention.attention_matrix(t, "attn", 1, 0, "difference", longer), "prompts of as many tokens"),
        (lambda: attention.attention_matrix(t, "attn", 1, 0, "virtual", first=(1, 0)), "a layer before 1"),
        (lambda: attention.attention_reasons(t, "attn", 1, 0, 2, 5), "query 2 may not read key 5"),
    ]:
        with pytest.raises(InputError, match=reason):
            question()


# Stream -------------------------------------------------------------------------------------


def test_the_lens_grid_is_the_lens(t):
    *progress, panel = stream.lens_grid(t, k=4)
    arrays = panel["arrays"]
    assert progress == [{"done": i + 1, "of": len(progress)} for i in range(len(progress))]
    lens, n = run_code(panel, trace=t)["lens"], len(panel["tokens"])
    assert panel["points"] == lens.points
    assert torch.equal(arrays["ids"].long(), lens.tokens[:, 0, :n])
    stats = dict(zip(panel["stats"], arrays["stats"], strict=True))
    assert torch.equal(stats["probability"], lens.probabilities[:, 0, :, 0])
    assert torch.equal(stats["kl"], lens.kl[:, 0].clamp(min=0) / math.log(2))
    assert torch.equal(stats["entropy"], lens.entropy[:, 0] / math.log(2))
    ranked = lens.rank[:, 0] >= 0
    assert torch.equal(stats["rank"][ranked], lens.rank[:, 0][ranked].double())
    assert torch.equal(stats["surprisal"][ranked], -lens.probability[:, 0][ranked].log2())
    assert stats["surprisal"][~ranked].isnan().all()
    assert panel["words"][str(int(arrays["ids"][0, 0, 0]))] == t.spell(int(arrays["ids"][0, 0, 0]))


def test_pinned_tokens_have_the_ranks_of_the_lens(t):
    panel = stream.token_trajectories(t, [97, 40], 3)
    followed = run_code(panel, trace=t)["followed"]
    assert_same(panel["probability"], followed.probability)
    assert panel["rank"] == followed.rank.tolist()
    for column, token in enumerate([97, 40]):
        lens = t.lens(target=token)
        assert [row[column] for row in panel["rank"]] == lens.rank[:, 0, 3].tolist()
        assert torch.allclose(followed.probability[:, column], lens.probability[:, 0, 3], rtol=1e-9, atol=0)


@pytest.mark.parametrize("vs", [None, 40])
def test_a_waterfall_is_the_attribution_and_its_parts_sum_to_it(t, vs):
    panel = stream.logit_waterfall(t, 97, vs, -2)
    parts = run_code(panel, trace=t)["parts"]
    assert [row["label"] for row in panel["parts"]] == parts.labels
    assert_same([row["value"] for row in panel["parts"]], parts.values)
    assert abs(sum(row["value"] for row in panel["parts"]) - panel["logit"]) <= 1e-9
    checked = set()
    for row in panel["parts"]:
        if row["split"] and row["split"] not in checked:
            checked.add(row["split"])
            inside = stream.split_waterfall(t, 97, vs, -2, row["label"], k=3)
            values = run_code(inside, trace=t)["values"]
            assert all(part["value"] == values[part["label"]] for part in inside["parts"][:3])
            assert abs(sum(part["value"] for part in inside["parts"]) - row["value"]) <= 1e-9
            assert abs(inside["sum"] - row["value"]) <= 1e-9
            head = inside["parts"][0]
            if head["split"] == "source":
                sources = stream.split_waterfall(t, 97, vs, -2, head["label"], k=99)
                assert len(sources["parts"]) == len(t.tokens if "cross" not in row["label"] else t.source_tokens[0])
                assert abs(sum(part["value"] for part in sources["parts"]) - head["value"]) <= 1e-9
    with pytest.raises(InputError, match="has no parts"):
        stream.split_waterfall(t, 97, vs, -2, "embed")


def test_parts_of_an_edited_pass_still_sum_to_it():
    model = random_model("gpt2")
    t = model.trace("a cat", edits=[edits.scale("blocks.1.attn_out", 2.0), edits.zero("blocks.0.mlp_out")])
    panel = stream.logit_waterfall(t, 97, None, -1)
    assert abs(sum(row["value"] for row in panel["parts"]) - panel["logit"]) <= 1e-9
    inside = stream.split_waterfall(t, 97, None, -1, "blocks.1.attn_out", k=99)
    assert inside["parts"][-1]["label"] == "blocks.1.attn_out (edited)"
    assert abs(inside["sum"] - {row["label"]: row["value"] for row in panel["parts"]}["blocks.1.attn_out"]) <= 1e-9


def test_the_norms_are_the_tensors(t):
    panel = stream.stream_norms(t)
    arrays = panel["arrays"]
    norms = run_code(panel, trace=t)["norms"]
    for row, name in zip(arrays["stream"], panel["points"], strict=True):
        assert torch.equal(row, norms[name])
    for row, name in zip(arrays["lengths"], panel["writes"], strict=True):
        assert torch.equal(row, norms[name])
    embed = "embed_projected" if t.architecture.embed_projection == "sum" else "embed"
    assert {name.rpartition(".")[2] for name in panel["writes"]} >= {embed, "attn_out", "mlp_out"}


# Circuits -----------------------------------------------------------------------------------


PARTS = [(family, part) for family in FAMILIES for part in ("attn", "encoder", "cross")]
PARTS = [(family, part) for family, part in PARTS if part == "attn" or FAMILIES[family].encoder is not None]


@pytest.fixture(
    scope="module",
    params=[p if p[0] in QUICK else pytest.param(p, marks=pytest.mark.slow) for p in PARTS],
    ids="-".join,
)
def circuits_and_model(request):
    family, part = request.param
    model = random_model(family)
    return model.circuits(part=part), model


def test_the_table_of_heads_is_their_weights(circuits_and_model):
    circuits, model = circuits_and_model
    panel = look_circuits.heads_by_weights(circuits)
    ran = run_code(panel, model=model)
    assert ("copying" in ran) == (panel["copying_reason"] is None)
    for row in panel["heads"]:
        head = ran["circuits"][row["layer"], row["head"]]
        assert_same(row["ov"], head.ov.singular_values())
        assert_same(row["qk"], head.qk(row["offset"]).singular_values())
        assert abs(row["ov_norm"] - float(head.ov.norm())) <= 1e-9
        if "copying" in ran:
            assert row["copying"] == float(ran["copying"][row["layer"], row["head"]])


def test_one_head_and_one_token(circuits_and_model):
    circuits, model = circuits_and_model
    panel = look_circuits.head_circuits(circuits, 1, 2)
    ran = run_code(panel, model=model)
    assert_same(panel["ov"], ran["ov"])
    assert_same(panel["qk"], ran["qk"])
    for of in ("ov", "qk"):
        if f"{of}_reason" in panel:
            continue
        for row, direction in zip(
            panel[f"{of}_directions"],
            ran["head"].directions(of, 6, 6, panel["offset"] if of == "qk" else None),
            strict=True,
        ):
            assert (row["strength"], row["out"], row["into"]) == tuple(direction)
    token = look_circuits.look_up_token(circuits, 1, 2, 97, 3)
    ran = run_code(token, model=model)
    for name in ("promotes", "looks_for"):
        assert (name in token) != (f"{name}_reason" in token)
        assert token.get(name) == ran.get(name)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_composition_has_its_baseline(circuits_and_model, kind):
    circuits, model = circuits_and_model
    if circuits.part == "cross":
        with pytest.raises(CircuitError, match="one stream"):
            look_circuits.composition_graph(circuits, kind)
        return
    panel, scores = look_circuits.composition_graph(circuits, kind)
    composition = run_code(panel, model=model)["composition"]
    assert torch.equal(scores.scores.nan_to_num(-1), composition.scores.nan_to_num(-1))
    assert (panel["baseline"], panel["spread"]) == (composition.baseline, composition.spread)
    for row in panel["top"]:
        assert row["score"] == float(composition.scores[*row["writer"], *row["reader"]])


def test_a_neuron_is_what_its_code_gives(circuits_and_model):
    circuits, model = circuits_and_model
    if circuits.part == "cross":
        return
    panel = look_circuits.neuron_memory(circuits, 1, 7)
    if not circuits.architecture.mlp.n_hidden:
        assert "without neurons" in panel["reason"]
        return
    ran = run_code(panel, model=model)
    for name in ("key", "gate", "value"):
        assert panel.get(name) == ran.get(name)
    assert ("gate" in panel) == (circuits.architecture.mlp.form == "gated")


def test_embeddings_have_neighbours_and_a_plane(model):
    for of in ("embed", "unembed"):
        table = model.embeddings(of)
        panel = look_circuits.embedding_neighbours(table, "c")
        assert panel["neighbours"] == run_code(panel, model=model)["neighbours"]
        panel, arrays = look_circuits.embedding_plane(table)
        ran = run_code(panel, model=model)
        assert torch.equal(arrays["plane"], ran["plane"])
        assert torch.equal(arrays["norms"], ran["norms"])
        assert 0 < panel["share"] <= 1


def test_positions_as_they_enter(circuits_and_model):
    circuits, model = circuits_and_model
    panel = look_circuits.positional_view(circuits, 1, 5)
    if "reason" in panel:
        return
    ran = run_code(panel, model=model)
    if panel["view"] == "rows":
        assert torch.equal(look_circuits.rows_similarity(circuits), ran["similarity"])
    elif panel["view"] == "angles":
        assert_same(panel["angles"], ran["angles"])
    else:
        assert_same(panel["bias"], ran["bias"])


def test_scores_over_distance(circuits_and_model):
    circuits, model = circuits_and_model
    if circuits.part == "cross":
        with pytest.raises(CircuitError, match="reads the encoder's output"):
            look_circuits.scores_over_distance(circuits, 1, 2, 97, 40)
        return
    panel = look_circuits.scores_over_distance(circuits, 1, 2, 97, 40)
    assert_same(panel["scores"], run_code(panel, model=model)["scores"])
    head = circuits[1, 2]
    offset = 3 if head.is_rotated else None
    plain = head.scale * float(head.full_qk(offset)[97, 40])
    bias = look_circuits.positional_view(circuits, 1).get("bias")
    assert abs(panel["scores"][3] - plain - (bias[2][3] if bias else 0)) <= 1e-9


def test_tokens_are_found_as_the_pages_write_them():
    """Part of a character by its escapes, and a row of a table that no tokenizer names by its number."""
    model = random_model("gpt2")
    table, token = model.embeddings("embed"), 0xE2
    shown = table.spell(token)
    assert shown == r"\xe2"
    assert look_circuits.embedding_neighbours(table, shown)["token"] == {"id": token, "text": shown}
    assert look_circuits.embedding_neighbours(model.embeddings("positions"), "5")["token"]["id"] == 5
    with pytest.raises(InputError, match="give a text that is one, or an id"):
        look_circuits.embedding_neighbours(table, "two")
