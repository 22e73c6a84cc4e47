"""The plan of one of many processes: bytes as PyTorch's own sharding lays them out, time by its formulas."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from pellucid.cli import main
from pellucid.model import Transformer
from pellucid.parameter_counts import count_parameters
from pellucid.plan.accelerators import TRAINING_SHARE, PlanError, accelerator
from pellucid.plan.flops import flops
from pellucid.plan.planning import default_recipe
from pellucid.plan.processes import (
    LINK_SHARE,
    Layout,
    divided_architecture,
    fastest,
    layout_of,
    plan_processes,
)
from pellucid.presets import preset
from pellucid.runs.options import with_train
from pellucid.training.memory import training_memory
from pellucid.training.recipe import Recipe

H100 = accelerator("h100-sxm")
GPT2 = preset("gpt2")


def recipe(batch: int = 64, **fields) -> Recipe:
    made = default_recipe(GPT2.with_fields({"n_layers": 3} | fields))
    return with_train(made, batch=batch, accumulate=1, precision="bfloat16", attention="fused")


@pytest.fixture
def eight_processes():
    """A group of eight processes of which this one is the first and the others do not exist."""
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("fields", [{}, {"n_vocab": 50_000, "unembed": "untied"}, {"d_model": 36, "n_heads": 4}])
def test_a_process_holds_what_fully_shard_gives_it(fields, eight_processes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    r = recipe(**fields)
    mesh = init_device_mesh("cpu", (8,))
    with torch.device("meta"):
        network = Transformer(r.model)
    for module in (*network.blocks, network):
        fully_shard(module, mesh=mesh)
    held = sum(p.to_local().numel() for p in network.parameters())  # type: ignore[attr-defined]
    assert plan_processes(r, layout_of(8), H100).parameters == held


@pytest.mark.parametrize("replicas", [1, 4])
def test_copies_need_the_memory_of_one_process_with_its_rows(replicas):
    plan = plan_processes(recipe(8 * replicas), layout_of(replicas, replicate=replicas, shard=1), H100)
    alone = training_memory(recipe(8))
    copies = alone.gradients if replicas > 1 else 0  # in which DistributedDataParallel sums gradients
    assert int(plan.peak) == int(alone.peak + copies)
    assert (plan.weights, plan.gradients, plan.optimizer) == (alone.weights, alone.gradients, alone.optimizer)
    assert plan.gathered == copies


def test_tensor_groups_divide_heads_the_mlp_and_the_vocabulary():
    r = recipe(n_vocab=50_000)
    divided = divided_architecture(r.model, 4)
    assert (divided.n_heads, divided.d_ff, divided.n_vocab) == (3, 768, 12_500)
    assert (divided.d_head, divided.d_model, divided.n_layers) == (64, 768, 3)
    plan = plan_processes(r, layout_of(4, tensor=4), H100)
    assert plan.parameters == count_parameters(divided)["total"]
    # norms, positions and the biases behind a sum are in every process; all others are divided
    a = r.model
    everywhere = a.n_layers * 6 * a.d_model + 2 * a.d_model + a.n_ctx * a.d_model
    assert 4 * (plan.parameters - everywhere) == count_parameters(a)["total"] - everywhere


@given(st.integers(0, 5), st.integers(0, 3), st.integers(0, 3))
def test_what_is_divided_again_and_again_is_never_less_than_its_share(shards, tensors, replicas):
    shard, tensor, replicate = 2**shards, 2 ** min(tensors, 2), 2**replicas
    r = recipe(1024, n_vocab=50_000)
    plan = plan_processes(r, Layout(replicate, shard, tensor), H100)
    assert plan.parameters * shard * tensor >= count_parameters(r.model)["total"]
    assert plan.rows * plan.passes * replicate * shard == r.train.batch
    assert plan.weights == plan.gradients == 4 * plan.parameters


def test_recomputing_and_more_passes_save_activations():
    r, layout = recipe(64), layout_of(8)
    once, twice = (plan_processes(r, layout, H100, passes=passes) for passes in (1, 8))
    again = plan_processes(with_train(r, recompute="yes"), layout, H100)
    assert max(twice.activations, again.activations) < once.activations / 2
    assert again.compute == pytest.approx(once.compute * 4 / 3)
    assert twice.compute == once.compute


def test_time_and_traffic_are_their_formulas():
    r = recipe(64, n_vocab=50_000)
    a = r.model
    plan = plan_processes(r, Layout(2, 4, 2), H100)
    assert plan.compute == flops(a).training * 64 * a.n_ctx / 16 / (TRAINING_SHARE * 989e12)
    sent = {traffic.kind: traffic for traffic in plan.traffic}
    numbers = count_parameters(divided_architecture(a, 2))["total"]
    stream = 8 * a.n_ctx * a.d_model * 2
    assert sent["tensor: sums of the stream"].bytes == (4 * a.n_layers + 2) * 2 * stream / 2
    assert sent["shard: gathered parameters"].bytes == 2 * 4 * numbers * 3 / 4
    assert sent["shard: scattered gradients"].bytes == 4 * numbers * 3 / 4
    assert sent["replicate: sums of gradients"].bytes == 2 * 4 * numbers / 4 / 2
    # groups of two and of eight are on one machine, all sixteen are not
    assert sent["shard: gathered parameters"].seconds == 6 * numbers / (LINK_SHARE * 450e9)
    assert sent["replicate: sums of gradients"].seconds == numbers / (LINK_SHARE * 50e9)
    exposed = sent["tensor: sums of the stream"].seconds
    hidden = sum(t.seconds for t in plan.traffic) - exposed
    assert plan.seconds == pytest.approx(exposed + max(plan.compute, hidden))


@pytest.mark.parametrize(
    ("words", "layout"),
    [
        ({}, Layout(1, 16, 1)),
        ({"tensor": 4}, Layout(1, 4, 4)),
        ({"replicate": 2}, Layout(2, 8, 1)),
        ({"shard": 2, "tensor": 2}, Layout(4, 2, 2)),
        ({"replicate": 4, "shard": 2, "tensor": 2}, Layout(4, 2, 2)),
    ],
)
def test_open_numbers_take_what_is_left(words, layout):
    assert layout_of(16, **words) == layout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"tensor": 3}, "tensor = 3 does not divide processes = 16"),
        ({"replicate": 2, "shard": 2, "tensor": 2}, "= 8, but processes = 16"),
        ({"replicate": -1}, "give numbers from 1 on"),
    ],
)
def test_impossible_layouts_are_refused(words, message):
    with pytest.raises(PlanError, match=message):
        layout_of(16, **words)


@pytest.mark.parametrize(
    ("changes", "layout", "message"),
    [
        ({}, Layout(1, 1, 8), r"attention.n_heads = 12 is not divisible by tensor = 8.*8 or 16 for attention.n_heads"),
        ({}, Layout(1, 1, 4), r"n_vocab = 50,257 is not divisible by tensor = 4"),
        ({"attention.n_kv_heads": 2}, Layout(1, 1, 4), r"n_kv_heads = 2 .*tensor = 4.*4 or 4"),
        ({"mlp.d_ff": 3073}, Layout(1, 1, 4), "mlp.d_ff = 3,073"),
        ({"n_ctx": 1023}, Layout(1, 1, 2), "n_ctx = 1,023 is not divisible by tensor = 2"),
        ({"mlp.experts": 4}, Layout(1, 1, 2), r"tensor = 2 does not divide experts \(mlp.experts = 4\)"),
        ({"d_embed": 64}, Layout(1, 1, 2), "tensor = 2 does not divide the projections of d_embed = 64"),
        ({}, Layout(3, 1, 1), "batch = 64 rows are not divisible by replicate x shard x micro-batches = 3 x 1"),
    ],
)
def test_the_first_size_that_does_not_divide_is_named(changes, layout, message):
    with pytest.raises(PlanError, match=message):
        plan_processes(recipe(64, **changes), layout, H100)


@pytest.mark.parametrize(("shard", "precision"), [(1, "bfloat16"), (4, "float32")])
def test_rounded_weights_are_for_parts_and_for_products_that_are_rounded(shard, precision):
    r = with_train(recipe(64), precision=precision)
    r = replace(r, parallel=replace(r.parallel, gather="bfloat16"))
    with pytest.raises(PlanError, match=f"shard = {shard} and precision = {precision}"):
        plan_processes(r, layout_of(4, shard=shard), H100)


@pytest.mark.slow
def test_a_search_finds_the_fastest_layout_that_fits():
    r = recipe(64, n_vocab=50_000, n_layers=24, d_model=2048, n_heads=16)
    small = replace(H100, memory=24e9)
    plans = fastest(r, 8, small, per_machine=2)
    assert plans[0].layout.processes == 8
    assert all(plan.fits for plan in plans)
    assert [plan.seconds for plan in plans] == sorted(plan.seconds for plan in plans)
    # no layout with these passes is faster and fits
    for shard, tensor in ((8, 1), (4, 2), (2, 2), (1, 1)):
        layout = Layout(8 // shard // tensor, shard, tensor)
        for passes in (1, 2, 4):
            for recompute in ("no", "yes"):
                plan = plan_processes(with_train(r, recompute=recompute), layout, small, passes=passes, per_machine=2)
                assert not plan.fits or plan.seconds >= plans[0].seconds


@pytest.mark.slow
def test_a_search_without_success_names_the_nearest():
    with pytest.raises(PlanError, match=r"no layout of 2 processes fits into h100-sxm: the smallest, .* needs"):
        fastest(recipe(64), 2, replace(H100, memory=1e9))


@pytest.mark.slow
def test_four_hundred_billion_parameters_on_8192_processes_are_planned_in_little_memory(tmp_path):
    """Llama 3.1 405B's sizes (Dubey et al. 2024, table 3): every number by shapes alone."""
    sizes = {"n_layers": 126, "d_model": 16384, "n_heads": 128, "n_kv_heads": 8, "d_ff": 53248, "n_ctx": 8192}
    a = preset("modern").with_fields(sizes | {"n_vocab": 128_256, "mlp.form": "gated", "unembed": "untied"})
    assert count_parameters(a)["total"] == pytest.approx(405.85e9, rel=1e-3)
    (tmp_path / "405b.json").write_text(json.dumps(a.to_dict()))
    # a process of its own, that says how much it held at most since it began: what forked it may have held more
    own_peak = "import sys; from pellucid.cli import main; main(sys.argv[1:]); print(open('/proc/self/status').read())"
    options = ["--processes", "8192", "--tensor", "8", "--accelerator", "h100-sxm", "--no-measure", "--json"]
    command = [sys.executable, "-c", own_peak, "plan", str(tmp_path / "405b.json"), *options, "--batch", "2048"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plans, end = json.JSONDecoder().raw_decode(said)
    (plan,) = plans["on_processes"]
    assert plan["layout"] == {"replicate": 1, "shard": 1024, "tensor": 8}
    # 1,024 divides neither the 6,656 rows of a process's MLP nor the 128 of its keys: the largest process has 11% more
    assert 1.11 < plan["parameters"] * 8192 / count_parameters(a)["total"] < 1.12
    assert int(re.search(r"VmHWM:\s*(\d+) kB", said[end:])[1]) * 1024 < 1e9


def test_the_command_prints_processes(capsys):
    assert main(["plan", "gpt2", "--processes", "4", "--accelerator", "h100-sxm", "--no-measure"]) == 0
    said = capsys.readouterr().out
    assert "4 processes = replicate 1 x shard 4 x tensor 1, on h100-sxm:" in said
    assert "shard: gathered parameters" in said
    assert "memory for training" not in said
    assert main(["plan", "gpt2", "--processes", "4", "--search", "--no-measure", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["on_processes"]
    assert {plan["accelerator"]["name"] for plan in plans} == {"rtx-4090", "a100-80gb", "h100-sxm"}
    assert main(["plan", "gpt2", "--processes", "4", "--search", "--shard", "2", "--no-measure"]) == 2
    assert "search tries every layout" in capsys.readouterr().err
