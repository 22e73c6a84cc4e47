"""Format a plan as lines of text."""

from pellucid.architecture import Architecture
from pellucid.hub.targets import opens_in
from pellucid.parameter_counts import count_active_parameters
from pellucid.plan.accelerators import READING_SHARE, TRAINING_SHARE, USABLE
from pellucid.plan.flops import flops_per_generated_token
from pellucid.plan.planning import AcceleratorPlan, Plan, cache_bytes
from pellucid.plan.processes import LINK_SHARE, PER_MACHINE, ProcessPlan
from pellucid.text.read.chunks import counted

UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def plan_lines(plan: Plan) -> list[str]:
    """All sections of the plan."""
    lines = [*_network(plan), opens_in(plan.recipe.model), ""]
    if plan.on_processes:
        return [*lines, *(line for p in plan.on_processes for line in _process(p, plan.tokens)), *_assumptions()]
    return [*lines, *_memory(plan), "", *_time(plan), *_accelerator_table(plan)]


def _network(plan: Plan) -> list[str]:
    a, total = plan.recipe.model, plan.parameters["total"]
    first, last = flops_per_generated_token(a, 1), flops_per_generated_token(a, a.n_ctx)
    return [
        f"{plan.name}: {total:,} parameters, {counted(a.n_layers, 'layer')}, width {a.d_model}, "
        f"{counted(a.n_heads, 'head')}, context {a.n_ctx}, vocabulary {a.n_vocab:,}",
        *(f"  {part:<12}{n:>16,}  {n / total:6.1%}" for part, n in plan.parameters.items() if part != "total"),
        *_active(a, total),
        f"FLOPs per token in training: {scaled(plan.flops.training)} = 3 x (products with weights "
        f"{scaled(plan.flops.products)} + attention {scaled(plan.flops.attention)}), forward and backward",
        f"FLOPs per token written with a cache: {scaled(first.forward)} for the first, {scaled(last.forward)} for the "
        f"{a.n_ctx:,}th",
    ]


def _active(a: Architecture, total: int) -> list[str]:
    """Of a mixture of experts, how many parameters one position uses."""
    if not a.mlp.experts:
        return []
    active = count_active_parameters(a)
    used = f"{a.mlp.experts_per_token} of {a.mlp.experts} experts"
    return [f"each position uses {active:,} parameters ({active / total:.1%}): {used} in each layer"]


def _memory(plan: Plan) -> list[str]:
    t, m, a = plan.recipe.train, plan.memory, plan.recipe.model
    total = plan.parameters["total"]
    lines = [
        f"memory for training: {size(m.peak)} at once, with {t.batch} sequences of {a.n_ctx} tokens a micro-batch, "
        f"{t.precision}, {t.optimizer}, eager",
        *(
            f"  {name:<12}{size(n):>16}"
            for name, n in (
                ("weights", m.weights),
                ("gradients", m.gradients),
                ("optimiser", m.optimizer),
                ("activations", m.activations),
            )
        ),
        f"  most of it lives in the {_phase(plan)}; on top come the interpreter, its libraries, and what was freed and",
        "  the system's allocator keeps; and, while a checkpoint is written, at least a copy of weights and averages,",
        f"  {size(m.weights + m.optimizer)} of the machine's memory",
        f"memory for generation: weights {size(4 * total)} in float32, {size(2 * total)} in bfloat16; cache "
        f"{size(cache_bytes(a))} a sequence in float32",
        f"{plan.device} has {size(plan.device_memory)}: "
        + (f"the largest batch that fits is {plan.largest_batch:,}" if plan.largest_batch else "not one sequence fits")
        + f" ({USABLE:.0%} of it planned with)",
    ]
    if not plan.fits:
        lines += ["this does not fit. What would help:"]
        for said, needed in plan.changes:
            fits = "fits" if needed <= USABLE * plan.device_memory else "still too much"
            lines.append(f"  {said}: {size(needed)}, {fits}")
    return lines


def _phase(plan: Plan) -> str:
    m = plan.memory
    return max((m.forward, "forward pass"), (m.backward, "backward pass"), (m.update, "update"))[1]


def _time(plan: Plan) -> list[str]:
    if plan.speed is None:
        return list(plan.step_lines)
    s = plan.speed
    share = s.share(plan.flops.training)
    return [
        *plan.step_lines,
        f"here: {s.tokens_per_second:,.0f} tokens/s in training, {s.seconds * 1e3:,.0f} ms a step ({s.how}); "
        f"{plan.tokens:,} tokens take {duration(plan.tokens / s.tokens_per_second)}",
        f"  {share:.0%} of what large products reach here: {scaled(plan.flops.training)} FLOPs per token x "
        f"{s.tokens_per_second:,.0f} tokens/s / {scaled(s.peak, 'FLOP/s')}",
    ]


def _accelerator_table(plan: Plan) -> list[str]:
    if not plan.elsewhere:
        return []
    head = ("accelerator", "needs / has", "batch", "train", f"{scaled(plan.tokens)} tokens", "write")
    rows = [_row(e, plan.tokens) for e in plan.elsewhere]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    table = ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
    return [
        "",
        f"from data sheets, at assumed shares of their peaks ({TRAINING_SHARE:.0%} of products in training, "
        f"{READING_SHARE:.0%} of bandwidth in writing one sequence); small networks reach less:",
        *(f"  {line}" for line in table),
    ]


def _process(p: ProcessPlan, tokens: int) -> list[str]:
    """The section about one of many processes."""
    parts = ("weights", "gradients", "optimizer", "gathered", "activations")
    per_second = p.tokens / p.seconds
    again = ", activations computed again" if p.recompute else ""
    return [
        f"{p.layout.processes:,} processes = {p.layout.words}, on {p.accelerator.name}:",
        f"  a step reads {scaled(p.tokens)} tokens: {counted(p.rows, 'sequence')} in each of "
        f"{p.passes:,} micro-batch{'es' * (p.passes > 1)} on each of {p.layout.groups:,} groups{again}",
        f"  memory of one process: {size(p.peak)} of {size(p.accelerator.memory)}: "
        + ("it fits" if p.fits else "it does not fit")
        + f" ({USABLE:.0%} is planned with); {p.parameters:,} parameters of its own",
        *(f"    {part:<12}{size(getattr(p, part)):>16}" for part in parts),
        f"  a step takes {duration(p.seconds)}: {duration(p.compute)} of computing, {duration(p.waiting)} of waiting "
        f"({p.waiting / p.seconds:.0%})",
        *(
            f"    {sent.kind:<28}{size(sent.bytes):>16} sent in {duration(sent.seconds)}"
            + (", while it computes" if sent.overlaps else "")
            for sent in p.traffic
        ),
        f"  {scaled(per_second)} tokens/s, {scaled(per_second / p.layout.processes)} on each; "
        f"{scaled(tokens)} tokens take {duration(tokens / per_second)}",
        "",
    ]


def _assumptions() -> list[str]:
    shares = f"{TRAINING_SHARE:.0%} of the peak of products and {LINK_SHARE:.0%} of the links' speed"
    return [
        f"assumed: {shares} in data sheets; {PER_MACHINE} processes on a machine;",
        "parameters, gradients and averages in float32; shard and tensor as PyTorch's fully_shard and tensor and",
        "sequence parallelism lay a network out; memory is the sum of the most that each part needs, though not all at",
        "the same time; a checkpoint that is being written takes at least as much again of the machine's memory as",
        "weights and averages",
    ]


def _row(e: AcceleratorPlan, tokens: int) -> tuple[str, ...]:
    return (
        f"{e.accelerator.name}, {e.precision}",
        f"{size(e.memory.peak)} / {size(e.accelerator.memory)}",
        f"up to {e.largest_batch:,}" if e.largest_batch else "none fits",
        f"{scaled(e.training)} tokens/s",
        duration(tokens / e.training),
        f"{scaled(e.writing)} tokens/s",
    )


def scaled(x: float, unit: str = "") -> str:
    """A number with three digits, a prefix and its unit: 12.3 MFLOP."""
    for factor, letter in UNITS:
        if x >= factor:
            return f"{x / factor:.3g} {letter}{unit}"
    return f"{x:.3g} {unit}".rstrip()


def size(n: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{n / 2**30:,.2f} GiB" if n >= 2**30 else f"{n / 2**20:,.1f} MiB"


def duration(seconds: float) -> str:
    """A duration in a suitable unit."""
    for unit, name in ((86400.0 * 365, "years"), (86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} s" if seconds >= 1 or seconds == 0 else f"{seconds * 1e3:,.3g} ms"
