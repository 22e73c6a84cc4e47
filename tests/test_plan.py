"""What a plan says: FLOPs as PyTorch counts them, memory as the step takes it, and nothing by the clock."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from tests.training.memory_walk import walk
from tests.training.tiny import recipe_for
from torch.utils.flop_counter import FlopCounterMode

import pellucid.plan.planning as planning
from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.cli import main
from pellucid.model import Cache, Transformer
from pellucid.model.attention import choose_attention_kernel
from pellucid.parameter_counts import count_parameters
from pellucid.plan import ACCELERATORS, flops, largest_batch, make_plan, plan_lines, speed
from pellucid.plan.accelerators import PlanError
from pellucid.plan.flops import flops_per_generated_token
from pellucid.plan.format import duration, scaled, size
from pellucid.plan.planning import cache_bytes, changes_that_help
from pellucid.plan.speed import extrapolated, training_speed
from pellucid.presets import preset
from pellucid.runs.device import free_bytes, resolve_device
from pellucid.runs.options import RecipeError, with_record, with_train
from pellucid.runs.processes import Processes
from pellucid.training import memory
from pellucid.training.memory import ERROR, training_memory
from pellucid.training.recipe import Recipe, make_recipe
from pellucid.training.resolve_recipe import training_bytes
from running import any_architectures, call, draw_tokens

SMALL = {"d_model": 32, "n_layers": 2, "n_heads": 2, "n_ctx": 16, "ngram_rows": 64, "batch": 4, "precision": "float32"}


def recipe(**fields) -> Recipe:
    made = make_recipe(("x",), "small", SMALL | fields)
    return replace(made, model=made.model.with_fields({"n_vocab": fields.get("n_vocab", 100)}))


def write_run(folder: Path, made: Recipe) -> None:
    """The recipe of a run of 12 steps, which has chosen what was open."""
    steps = {"evaluate_every": 12, "evaluate_tokens": 64, "checkpoint_every": 12, "sample_every": 0, "warmup": 0}
    chosen = {"weight_decay": 0.1, "device": "cpu", "precision": "float32", "compile": "no", "attention": "fused"}
    chosen |= steps | {"batch": 4, "accumulate": 1, "sample_prompt": ""}
    train = {name: value for name, value in chosen.items() if getattr(made.train, name) is None}
    folder.mkdir()
    written = with_record(with_train(made, **train), decay=(12, 12)).to_dict()
    (folder / "recipe.json").write_text(json.dumps(written))


def source_target(**fields) -> Recipe:
    made = make_recipe(("x",), "original", SMALL | {"objective": "source-target"} | fields)
    a = made.model
    assert a.encoder is not None
    return replace(made, model=replace(a, n_vocab=100, encoder=replace(a.encoder, n_vocab=100)))


# FLOPs ---------------------------------------------------------------------------------------


def counted(do) -> float:
    with FlopCounterMode(display=False) as counter:
        do()
    return counter.get_total_flops()


@settings(deadline=None, max_examples=25)
@given(any_architectures())
def test_flops_are_those_of_every_product_that_is_computed(a: Architecture):
    """Of a forward pass on a full row, attention written out."""
    network = make_network(a, dtype=torch.float32).eval()  # a router without numbers chooses no experts
    choose_attention_kernel(network, "explicit")
    tokens = draw_tokens(a, 1, a.n_ctx)
    source = None if a.encoder is None else draw_tokens(a.encoder, 1, a.encoder.n_ctx)
    with torch.no_grad():
        found = counted(
            lambda: call(network, tokens) if source is None else network(tokens, source=network.encode(source))
        )
    assert found == a.n_ctx * flops(a).forward
    assert flops(a).training == 3 * flops(a).forward


@settings(deadline=None, max_examples=20)
@given(any_architectures({"attention.mask": "causal"}))
def test_a_token_is_written_with_the_products_of_one_position(a: Architecture):
    if a.n_ctx < 2:
        return
    network = make_network(a, dtype=torch.float32).eval()
    choose_attention_kernel(network, "explicit")
    source = {} if a.encoder is None else {"source": network.encode(draw_tokens(a.encoder, 1, a.encoder.n_ctx))}
    with torch.no_grad():
        cache = Cache(a, capacity=a.n_ctx)
        network(draw_tokens(a, 1, a.n_ctx - 1), cache=cache, **source)
        found = counted(lambda: network(draw_tokens(a, 1, 1), cache=cache, **source))
        assert found == flops_per_generated_token(a, a.n_ctx).forward
        assert cache_bytes(a) == cache.nbytes


def test_a_token_of_gpt2_costs_the_published_flops():
    """6 N + 12 L d T FLOPs a token (Kaplan et al. 2020) but for the embedding's lookup."""
    a = preset("gpt2")
    n = count_parameters(a)["total"]
    assert flops(a).training == pytest.approx(6 * n + 12 * 12 * 768 * 1024, rel=0.01)


# Memory --------------------------------------------------------------------------------------


def test_weights_gradients_and_averages_are_counted_to_the_number():
    """4 bytes a weight and a gradient; Muon keeps one more of each of its own, AdamW two."""
    for word in ("adamw", "muon"):
        m = training_memory(recipe(optimizer=word))
        network = Transformer(recipe().model)
        n = sum(p.numel() for p in network.parameters())
        tables = sum(b.numel() * b.element_size() for b in network.buffers())
        hidden = sum(p.numel() for name, p in network.named_parameters() if p.ndim == 2 and "blocks." in name)
        adamw = sum(1 for _ in network.parameters()) if word == "adamw" else 0
        assert m.gradients - 4 * n == pytest.approx(0, abs=64)
        assert 0 <= m.weights - 4 * n <= tables + 64 * 1024
        expected = 8 * n - 4 * hidden * (word == "muon")
        assert m.optimizer == pytest.approx(expected, abs=4 * adamw + 4096)


def test_activations_are_what_the_backward_pass_really_keeps():
    """The bytes that autograd says it saves, on true tensors."""
    made = recipe(n_layers=3)
    network = Transformer(made.model).train()
    kept: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in (*network.parameters(), *network.buffers())}
    alive = []

    def save(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(x)
        return x

    tokens = draw_tokens(made.model, 4, made.model.n_ctx)
    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        loss = torch.nn.functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten(), reduction="sum")
    assert loss.requires_grad
    assert training_memory(made).activations == pytest.approx(sum(kept.values()), rel=ERROR)


def test_what_makes_a_step_smaller_or_larger_does():
    base = training_memory(recipe(n_layers=4, batch=16))
    assert training_memory(recipe(n_layers=4, batch=16, recompute="yes")).activations < base.activations / 2
    assert training_memory(recipe(n_layers=4, batch=16, precision="bfloat16")).activations < base.activations
    assert training_memory(recipe(n_layers=4, batch=16, dropout=0.1)).activations > base.activations
    assert training_memory(recipe(n_layers=4, batch=32)).activations == pytest.approx(2 * base.activations, rel=0.01)
    both, alone = training_memory(source_target()), training_memory(recipe())
    assert both.weights > alone.weights
    assert 0.7 < training_bytes(recipe(n_layers=4, batch=16).model, 16, "float32") / base.peak < 1.5


def test_a_second_pass_has_the_gradients_of_the_first_beside_it():
    """In its forward pass they live on; how many passes follow makes no difference."""
    one, two, many = (training_memory(recipe(n_layers=2, batch=16, accumulate=k)) for k in (1, 2, 8))
    assert two == many
    assert two.activations == one.activations
    assert two.gradients == one.gradients > 0
    assert two.forward == pytest.approx(one.forward + one.gradients, rel=1e-3)


def test_a_run_is_refused_that_does_not_fit_even_if_it_needs_less_than_the_formula_says(monkeypatch):
    made, cpu = recipe(n_layers=4, batch=16), torch.device("cpu")
    need = (1 - ERROR) * training_memory(made).peak
    monkeypatch.setattr(memory, "free_bytes", lambda device: need + 1)
    memory.check_memory(made, cpu)
    monkeypatch.setattr(memory, "free_bytes", lambda device: need - 1)
    with pytest.raises(RecipeError, match="would need at least"):
        memory.check_memory(made, cpu)


def test_a_run_that_fits_a_gpu_in_bfloat16_is_not_refused_where_its_precision_is_left_open(monkeypatch):
    made, cuda = recipe(n_layers=4, batch=16, precision=None), torch.device("cuda")
    rounded = (1 - ERROR) * training_memory(with_train(made, precision="bfloat16")).peak
    assert rounded < (1 - ERROR) * training_memory(made).peak
    monkeypatch.setattr(memory, "free_bytes", lambda device: rounded + 1)
    monkeypatch.setattr(memory, "may_use_bfloat16", lambda device: True)
    memory.check_memory(made, cuda)
    for word in (None, "float32"):
        monkeypatch.setattr(memory, "may_use_bfloat16", lambda device: False)
        with pytest.raises(RecipeError, match="would need at least"):
            memory.check_memory(with_train(made, precision=word), cuda)


def test_what_this_process_holds_of_a_gpu_is_not_free(monkeypatch):
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 30)
    assert free_bytes(cuda) == 120


def test_parts_in_processes_of_one_machine_are_added_up(monkeypatch):
    """Four processes that divide the weights need as much together as one, or a quarter on a machine of their own."""
    a_recipe, cpu, processes = recipe(n_layers=4, batch=16), torch.device("cpu"), Processes()
    processes.n = processes.n_parts = 4
    have = 0.5 * training_memory(a_recipe).weights
    monkeypatch.setattr(memory, "free_bytes", lambda device: have)
    processes.n_here = 4
    with pytest.raises(RecipeError, match=r"would need at least .* GiB in 4 processes of this machine"):
        memory.check_memory(a_recipe, cpu, processes)
    have = 2.0 * training_memory(a_recipe).weights
    processes.n_here = 1
    memory.check_memory(a_recipe, cpu, processes)
    with pytest.raises(RecipeError, match="would need at least"):
        memory.check_memory(a_recipe, cpu)


@pytest.mark.parametrize(
    "fields",
    [
        {"recompute": "yes"},
        {"attention": "explicit", "n_ctx": 2048},
        {"model.attention.score_cap": 50.0, "n_ctx": 2048},
    ],
    ids=str,
)
def test_what_fits_may_begin_and_what_does_not_may_not(fields, monkeypatch):
    """By a step on tensors without numbers, which the formula is held to."""
    made, cpu = recipe(n_layers=4, **fields), torch.device("cpu")
    need = walk(made).peak
    for have, fits in ((1.05 * need, True), (0.7 * need, False)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, have=have: have)
        if fits:
            memory.check_memory(made, cpu)
        else:
            with pytest.raises(RecipeError, match="would need at least"):
                memory.check_memory(made, cpu)


def test_adapters_are_planned_and_what_they_leave_as_it_is_has_no_gradient():
    """With few logits and with many, which are made in chunks: the readout is not trained there."""
    for batch in (1, 61):
        fields = {"n_vocab": 70_000, "n_layers": 1, "batch": batch}
        whole, adapted = (training_memory(recipe(**fields, **more)) for more in ({}, {"adapt.rank": 2}))
        assert adapted.gradients < 0.01 * whole.gradients
        assert adapted.peak < whole.peak


def test_a_step_in_more_passes_is_the_same_step():
    """Of 15 sequences 3 passes of 5, of 7 all by themselves."""
    for batch, said in ((15, "batch=5, accumulate=3 "), (7, "batch=1, accumulate=7 "), (16, "batch=8, accumulate=2 ")):
        assert changes_that_help(recipe(batch=batch, accumulate=1))[0][0].startswith(said)


def test_large_vocabularies_are_planned_in_chunks():
    whole, chunked = (training_memory(recipe(n_vocab=70_000, n_ctx=16, batch=b)) for b in (59, 61))
    assert chunked.backward < whole.backward


@pytest.mark.parametrize("fields", [{"recompute": "yes"}, {"n_vocab": 70_000}])
@pytest.mark.parametrize("room", [0.1e6, 60e6, 2e9])
def test_the_largest_batch_fits_and_one_more_does_not(fields, room):
    made = recipe(n_layers=1, **fields)
    most = largest_batch(made, room)
    if most:
        assert training_memory(with_train(made, batch=most)).peak <= room
    assert training_memory(with_train(made, batch=most + 1)).peak > room


# The plan ------------------------------------------------------------------------------------


def test_a_plan_of_a_preset_an_architecture_and_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(planning, "largest_batch", lambda r, room: 7)
    a = recipe().model
    (tmp_path / "a.json").write_text(json.dumps(a.to_dict()))
    options = {"measure": False, "precision": "float32", "accelerators": (), "batch": 4, "device": "cpu"}
    by_value, by_file = make_plan(a, **options), make_plan(tmp_path / "a.json", **options)
    assert by_value.parameters == by_file.parameters == {k: n for k, n in count_parameters(a).items() if n}
    assert by_value.memory == by_file.memory == training_memory(with_train(recipe(), attention="fused"))
    assert by_value.tokens == 20 * by_value.parameters["total"]
    other = make_plan("gpt2", vocabulary=1000, n_ctx=64, **options)
    assert (other.recipe.model.n_vocab, other.recipe.model.n_ctx) == (1000, 64)
    masked = make_plan("bert", vocabulary=1000, n_ctx=64, **options)
    assert masked.recipe.train.objective == "masked"
    assert cache_bytes(masked.recipe.model) == 0
    made = recipe_for(tmp_path / "text.txt")
    write_run(tmp_path / "run", made)
    run = make_plan(tmp_path / "run", **(options | {"batch": None}))
    assert (run.recipe.train.batch, run.tokens) == (2, 12 * 64)
    for sizes in ({"batch": 8}, {"batch": None, "n_ctx": 8}):
        assert make_plan(tmp_path / "run", **(options | sizes)).tokens == 12 * 64, sizes


def test_a_run_of_another_machine_is_planned_for_this_one(tmp_path, monkeypatch):
    """Which has neither its GPU nor what compiles."""
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(planning, "largest_batch", lambda r, room: 7)
    monkeypatch.setattr(planning, "compiling_lacks", lambda device: "there is no compiler here")
    there = with_train(recipe_for(tmp_path / "text.txt"), device="cuda:99", compile="yes")
    write_run(tmp_path / "run", there)
    plan = make_plan(tmp_path / "run", measure=False, accelerators=())
    assert plan.device == str(resolve_device("auto"))
    assert plan.recipe.train.compile == "no"
    with pytest.raises(RecipeError, match="cannot be used here"):
        make_plan(tmp_path / "run", measure=False, accelerators=(), device="cuda:99")


def test_what_does_not_fit_is_said_with_what_would(monkeypatch):
    a = recipe(n_layers=2, batch=6).model
    room = training_memory(recipe(n_layers=2, batch=6)).peak
    monkeypatch.setattr(planning, "memory_bytes", lambda device: 0.8 * room)
    made = make_plan(a, batch=6, precision="float32", measure=False, device="cpu", accelerators=())
    assert not made.fits
    assert 0 < made.largest_batch < 6
    said = "\n".join(plan_lines(made))
    assert "this does not fit. What would help:" in said
    for change, needed in made.changes:
        assert f"  {change}: {size(needed)}, {'fits' if needed <= 0.9 * 0.8 * room else 'still too much'}" in said
    assert any(needed <= 0.72 * room for _, needed in made.changes)
    monkeypatch.setattr(planning, "memory_bytes", lambda device: 0.1 * made.memory.weights)
    made = make_plan(a, batch=1, measure=False, device="cpu", accelerators=())
    assert "not one sequence fits" in "\n".join(plan_lines(made))


def test_the_command_prints_the_plan_and_its_numbers(tmp_path, capsys):
    a = recipe().model
    (tmp_path / "a.json").write_text(json.dumps(a.to_dict()))
    command = ["plan", str(tmp_path / "a.json"), "--no-measure", "--batch", "4", "--precision", "float32"]
    assert main([*command, "--accelerator", "l4"]) == 0
    said = capsys.readouterr().out
    for piece in (
        "a.json: ",
        "embed",
        "FLOPs per token",
        "memory for training",
        "largest batch",
        "l4, float32",
        "data sheets",
    ):
        assert piece in said, piece
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == count_parameters(a)["total"]
    assert found["flops_per_token"]["training"] == flops(a).training
    assert [e["accelerator"]["name"] for e in found["elsewhere"]] == ["rtx-4090", "a100-80gb", "h100-sxm"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "nothing"),
        (["small", "--accelerator", "h100"], "did you mean 'h100-pcie' or 'h100-sxm'?"),
        (["small", "--batch", "0"], "--batch 0: expected a number from 1 on"),
        (["missing.json"], "cannot be read"),
        (["."], "has no recipe.json"),
    ],
)
def test_what_cannot_be_planned_is_refused(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words, "--no-measure"]) == 2
    assert message in capsys.readouterr().err


def test_data_sheets_are_of_one_unit():
    """Half precision is faster than single, memory between 16 and 200 GB, bandwidth 0.2 to 10 TB/s."""
    for one in ACCELERATORS.values():
        assert one.float32 < one.bfloat16
        assert 16e9 <= one.memory <= 200e9
        assert 0.2e12 <= one.bandwidth <= 10e12
        assert one.peak("float32") == one.float32
    with pytest.raises(PlanError, match="choose one of"):
        make_plan("small", accelerators=("abacus",))


# Speed, but for the clock --------------------------------------------------------------------


def test_a_deep_network_s_step_is_on_the_line_through_two_shallow_ones(monkeypatch):
    """With a clock that says 5 units a layer and 7 for the rest."""
    monkeypatch.setattr(speed, "step_seconds", lambda r, device, budget: 7.0 + 5.0 * r.model.n_layers)
    monkeypatch.setattr(speed, "product_speed", lambda device, precision: 1e15)
    for depth in (1, 2, 3, 4, 12):
        found = training_speed(recipe(n_layers=depth), torch.device("cpu"))
        assert found.seconds == pytest.approx(7 + 5 * depth)
        assert found.tokens_per_second == pytest.approx(64 / found.seconds)
        assert found.share(10.0) == pytest.approx(10 * found.tokens_per_second / 1e15)
    huge = training_speed(recipe(n_layers=12, d_model=65536, n_heads=64), torch.device("cpu"), memory=2**30)
    assert huge.how.startswith("estimated")


def test_on_a_gpu_products_are_larger(monkeypatch):
    """A small product is over before the next one is started."""
    monkeypatch.setattr(speed, "product_speed", lambda device, precision: 1e15)
    for kind, cube in (("cpu", 1024), ("cuda", 8192)):
        huge = training_speed(recipe(n_layers=1, d_model=65536, n_heads=64), torch.device(kind), memory=2**30)
        assert huge.how.startswith(f"estimated: 50% of the speed of a {cube}-cube product")


def test_a_step_takes_at_least_as_long_as_a_part_of_it():
    assert extrapolated([(1, 0.5)]) == 0.5
    assert extrapolated([(-6, 0.5), (7, 0.6)]) == pytest.approx(0.5 + 7 * 0.1)
    assert extrapolated([(-6, 0.6), (7, 0.5)]) == 0.6  # the second layer cannot have taken less than none


def test_a_true_step_is_taken():
    """Every kind of pass, once; what it costs is not asked."""
    for made in (recipe(), recipe(optimizer="adamw", accumulate=2), source_target(), recipe(**{"adapt.rank": 2})):
        speed_here = training_speed(made, torch.device("cpu"), 0.1)
        assert speed_here.how.startswith("measured")
        assert speed_here.seconds > 0


def test_numbers_are_readable():
    assert scaled(12_345_678) == "12.3 M"
    assert scaled(3.2e12, "FLOP/s") == "3.2 TFLOP/s"
    assert scaled(5.0) == "5"
    assert size(3 * 2**29) == "1.50 GiB"
    assert duration(90) == "90.0 s"
    assert duration(7200) == "2.0 hours"
