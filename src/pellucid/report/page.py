"""The report of a run: one HTML file that loads nothing, runs no script, and opens from disk."""

import html
import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pellucid.architecture import Architecture
from pellucid.baselines import verdict
from pellucid.destination import replace_file
from pellucid.generate.samples import SAMPLE_TOKENS
from pellucid.hub.targets import run_opens_in
from pellucid.plan.format import duration, scaled
from pellucid.report.charts import Line, ReferenceLine, chart
from pellucid.report.contents import Contents
from pellucid.runs.metrics import last_evaluation, part_measured, predicted_tokens
from pellucid.runs.schedule import decay_of
from pellucid.sources.novelty import TAIL
from pellucid.text.read.chunks import counted
from pellucid.text.sanitize import sanitize

#: no request leaves the page and no script runs, whatever a text in it contains
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: how many samples are shown at once
SAMPLES = 3
#: how many runs beside this one are linked
NEIGHBOURS = 8
#: how many files are listed, including folded ones
FILES = 12
#: ... and how many held-out documents
LISTED_DOCUMENTS = 200
OBJECTIVES = {
    "next-token": "predicts the next token",
    "prefix": "continues a prefix that it reads both ways",
    "masked": "finds the tokens that are hidden from it",
    "source-target": "reads a source and writes its target",
    "chat": "answers in conversations",
}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def page_of(run: Contents) -> str:
    """The whole page."""
    sections = (
        _head,
        _warnings,
        _losses,
        _baselines,
        _samples,
        _novelty,
        _architecture,
        _course,
        _speed,
        _data,
        _reproduction_section,
    )
    body = "\n".join(html_of_section for section in sections if (html_of_section := section(run)))
    return PAGE.format(policy=POLICY, title=e(f"{run.run.name}: a training run"), style=style(), body=body)


def _head(run: Contents) -> str:
    a, last, t = run.recipe.model, _last_evaluation(run), run.recipe.train
    facts = [("parameters", f"{run.parameters['total']:,}"), ("blocks", f"{a.n_layers}"), ("width", f"{a.d_model:,}")]
    facts += [("context", f"{a.n_ctx:,}"), ("vocabulary", f"{a.n_vocab:,}"), ("steps", _steps(run))]
    facts += [("trained for", duration(run.seconds))] if run.seconds else []
    opens = f'<p class="quiet">O{e(run_opens_in(run.run, a))[1:]}.</p>'
    what = f'<p class="quiet">A transformer that {OBJECTIVES.get(t.objective, t.objective)}</p>'
    result = _final_loss_text(run, last) + _mixture(run)
    return (
        f"<header><h1>{e(run.run.name)}</h1>{what}{result}{_definition_list(facts)}{opens}{_neighbours(run)}</header>"
    )


def _neighbours(run: Contents) -> str:
    """Links to the reports of the runs beside this one."""
    near = run.neighbours[:NEIGHBOURS]
    links = ", ".join(f'<a href="../{quote(path.name)}/report.html">{e(path.name)}</a>' for path in near)
    rest = f" and {len(run.neighbours) - NEIGHBOURS:,} more" if len(run.neighbours) > NEIGHBOURS else ""
    return f'<p class="quiet">Other runs here: {links}{rest}.</p>' if links else ""


def _final_loss_text(run: Contents, last: Mapping[str, Any]) -> str:
    """The last held-out loss, and that of the best checkpoint if it is lower."""
    if not last:
        return ""
    part = part_measured(last)
    text = f"the first {part:,} held-out tokens" if part else "held-out text"
    big = (
        f'<p class="big"><b>{last["bits_per_byte"]:.3f}</b> bits per byte of {text}'
        f" <span>{last['held_out_loss']:.4f} nats per token, after step {last['step']:,}</span></p>"
    )
    parts = dict(run.series("held_out_part"))
    if run.best is None or not parts:
        return big
    best, lowest = run.best
    if last["step"] not in parts:
        return big + (
            '<p class="quiet">There was no time to read enough of the held-out text to compare this step with earlier '
            f"ones: the checkpoint of step {best:,} is kept as the best, and it is loaded by default.</p>"
        )
    if not lowest < parts[last["step"]]:
        return big
    return big + (
        f'<p class="quiet">The best checkpoint is that of step {best:,}, whose held-out loss was lower by '
        f"{parts[last['step']] - lowest:.4f} nats per token: it is kept, and it is loaded by default.</p>"
    )


def _mixture(run: Contents) -> str:
    """What the n-gram that the run stores adds to its network."""
    row = next((row for row in reversed(run.rows) if "mixed_bits_per_byte" in row), None)
    if row is None:
        return ""
    known = run.data.get("parts", {}).get("held_out", {}).get("tokens", 0)
    text = "" if row["mixed_tokens"] + 1 >= known else f", on the first {row['mixed_tokens']:,} held-out tokens"
    return (
        f'<p class="quiet">With the n-gram that the run stores: {row["mixed_bits_per_byte"]:.3f} bits per byte, and '
        f"{row['unmixed_bits_per_byte']:.3f} without it{text}. The network of step {row['mixed_step']:,} has a share "
        f"of {row['mixture_weight']:.3f}, fitted on training text that neither was trained on. --mix auto uses both; "
        "convert leaves the n-gram out.</p>"
    )


def _steps(run: Contents) -> str:
    done = max((row["step"] for row in run.rows), default=0)
    return f"{done:,}" if done == run.recipe.n_steps else f"{done:,} of {run.recipe.n_steps:,}"


def _last_evaluation(run: Contents) -> Mapping[str, Any]:
    return last_evaluation(run.rows)


def _warnings(run: Contents) -> str:
    said = [
        *run.damages,
        *(run.baselines.warnings if run.baselines else []),
        *(text for _, text in run.texts("warning")),
    ]
    skipped = sum(1 for row in run.rows if row.get("skipped") is True)
    were = "was" if skipped == 1 else "were"
    why = "because the loss or the gradient was not finite"
    said += [f"{counted(skipped, 'step')} {were} skipped, {why}"] if skipped else []
    return "".join(f'<p class="warning">{e(text)}</p>' for text in said)


def _losses(run: Contents) -> str:
    """The loss curves. Held-out text is measured by its beginning during the run and by all of it at the end."""
    levels = [ReferenceLine(p.name, p.bits_per_byte) for p in run.baselines.predictors] if run.baselines else []
    (begun, bits), (all_losses, all_bits) = run.held_out()
    first, everything, note = _measured(run, all_losses[-1][0]) if all_losses else ("held-out", "", "")
    of_bits = [Line(first, bits), Line(everything, all_bits)]
    of_loss = [Line("training", run.series("loss"), "training"), Line(first, begun), Line(everything, all_losses)]
    charts = chart("Held-out text", of_bits, levels, "bits per byte") + chart("Loss", of_loss, unit="nats per token")
    return page_section("Learning", note, charts, "charts")


def _measured(run: Contents, step: float) -> tuple[str, str, str]:
    """The names of the two held-out measurements, the larger of which is that of `step`, and a sentence about them."""
    row = next(row for row in run.rows if row["step"] == step and row.get("held_out_loss"))
    read, known = run.recipe.train.evaluate_tokens, predicted_tokens(run.data, "held_out")
    part = part_measured(row)
    # the tokens that are read of pairs and conversations are not only those that are predicted
    of = f" of the {known:,}" if known and not run.recipe.record.tokens_per_row else ""
    everything = f"all of it, {known:,} tokens" if known else "all of it"
    everything, end = (f"its first {part:,} tokens", f"the first {part:,}") if part else (everything, "all of them")
    note = f"During training the loss is measured on the first {read:,}{of} held-out tokens; at the end, on {end}."
    return f"held-out, its first {read:,} tokens", everything, note


def _baselines(run: Contents) -> str:
    results, last = run.baselines, _last_evaluation(run)
    if results is None:
        return ""
    part = part_measured(last)
    name = f"this model, first {part:,} tokens" if part else "this model"
    rows = [(p.name, p.bits_per_byte, "") for p in results.predictors]
    rows += [(name, last["bits_per_byte"], " mine")] if last else []
    most = max((bits for _, bits, _ in rows), default=0.0) or 1.0
    bars = _bars([(name, f"{bits:.3f}", bits / most, kind) for name, bits, kind in rows])
    said = verdict(results, last["bits_per_byte"], part) if last else results.reach
    again = results.repeats
    windows = f"{again.windows:,} held-out windows of {again.length} tokens"
    also = f"Of {windows} {again.share:.1%} also stand" if again.share else f"None of {windows} stands"
    text = "held-out text" if part else "the same held-out text"
    note = f"Bits per byte of {text}; less is better. {_sentence(said)} {also} in the training text."
    return page_section("Beside counting", f"{note} {_sentence(results.note) if results.note else ''}", bars)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _samples(run: Contents) -> str:
    texts = run.texts("sample")
    if not texts:
        return ""
    picked = sorted({round(i * (len(texts) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    shown = "".join(
        f"<figure class=sample><figcaption>step {step:,}</figcaption><pre dir=auto>{e(text)}</pre></figure>"
        for step, text in (texts[i] for i in picked)
    )
    rest = [text for i, text in enumerate(texts) if i not in picked]
    more = "".join(f"<p class=quiet>step {step:,}</p><pre dir=auto>{e(text)}</pre>" for step, text in rest)
    folded = f"<details><summary>{len(rest)} more</summary>{more}</details>" if rest else ""
    how = "Drawn at temperature 0.8" if run.recipe.model.encoder is None else "The likeliest token each time"
    how += f", at most {SAMPLE_TOKENS} tokens each, as training went on."
    return page_section("What it writes", how, f"<div class=samples>{shown}</div>{folded}")


def _novelty(run: Contents) -> str:
    """How much of what the checkpoints write is new, beside the held-out text."""
    if run.novelty is None:
        return ""
    steps = sorted(run.novelty.checkpoints)
    curves = {f"samples of step {step:,}": run.novelty.checkpoints[step] for step in steps[-1:]}
    lines = [
        Line(name, [(float(n), share) for n, share in enumerate(curve.shares, 1)], kind)
        for (name, curve), kind in zip(
            (*curves.items(), ("held-out text", run.novelty.held_out)), ("model", "training"), strict=True
        )
    ]
    tails = [(float(step), run.novelty.checkpoints[step].shares[TAIL - 1]) for step in steps]
    level = [ReferenceLine("held-out text", run.novelty.held_out.shares[TAIL - 1])]
    charts = chart("N-grams that the training text does not have", lines, unit="share", axis="n")
    charts += chart(f"The same for n = {TAIL}", [Line("samples", tails)], level, "share")
    said = run.novelty.verdict
    note = f"{said[0].upper()}{said[1:]}. Samples are drawn at temperature 1."
    return page_section("Does it copy?", note, charts, "charts")


def _architecture(run: Contents) -> str:
    """The options of the architecture, and its parameters by part."""
    parts, total = run.parameters, run.parameters["total"]
    bars = _bars([(p, f"{n:,}", n / total, "") for p, n in parts.items() if p != "total"])
    a = run.recipe.model
    stacks = [("Options", a)] if a.encoder is None else [("Encoder", a.encoder), ("Decoder", a)]
    options = "".join(f"<h3>{title}</h3>{_definition_list(named_options(stack))}" for title, stack in stacks)
    beside = f"<div><h3>Parameters by part, {total:,} in all</h3>{bars}</div>"
    note = "Options that are not named have their defaults."
    return page_section("What it computes", note, f"<div class=two><div>{options}</div>{beside}</div>")


#: the options of an architecture that are named even where they have their defaults
ALWAYS_NAMED_OPTIONS = (
    *("n_layers", "d_model", "n_ctx", "n_vocab", "block", "norm.kind", "positions.kind"),
    *("attention.n_heads", "attention.mask", "mlp.d_ff", "mlp.activation", "mlp.form", "unembed"),
)


def named_options(a: Architecture) -> list[tuple[str, str]]:
    """The dotted names and the values of the options that are always named, then of those that differ from their
    defaults; those of an encoder are left out.
    """
    values = _by_dotted_name(a.to_dict()) | {"mlp.d_ff": a.d_ff}
    defaults = _by_dotted_name(Architecture(n_vocab=1, n_ctx=1, d_model=4, n_layers=0).to_dict())
    differ = [name for name in defaults if values[name] != defaults[name] and name not in ALWAYS_NAMED_OPTIONS]
    shown = {name: values[name] for name in (*ALWAYS_NAMED_OPTIONS, *differ)}
    return [
        (name, ",".join(map(str, value)) if isinstance(value, list) else str(value)) for name, value in shown.items()
    ]


def _by_dotted_name(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an architecture, without those of its encoder."""
    flat = {}
    for name, value in values.items():
        if name != "encoder":
            part = {f"{name}.{last}": one for last, one in value.items()} if isinstance(value, dict) else {name: value}
            flat |= part
    return flat


def _course(run: Contents) -> str:
    charts = chart("Learning rate", [Line("", run.series("learning_rate"))], zero=True)
    charts += chart("Gradient norm", [Line("", run.series("grad_norm"))], unit="before clipping", zero=True)
    experts = [Line("least used", run.series("least_used")), Line("most used", run.series("most_used"))]
    charts += chart("Shares of the experts' choices", experts, unit="of one expert in one layer", zero=True)
    return page_section("The course of training", "", charts, "charts") if charts else ""


def _speed(run: Contents) -> str:
    speeds, tokens = run.speeds(), max((v for _, v in run.series("tokens")), default=0.0)
    if not tokens or not run.seconds:
        return ""
    overall = tokens / run.seconds
    lines, typical = [f"{overall:,.0f} tokens per second with all saving, measuring and sampling."], 0.0
    if speeds:
        typical = statistics.median(v for _, v in speeds)
        lines.insert(0, f"{typical:,.0f} tokens per second in steps, by the median.")
    body = "".join(f"<p>{e(line)}</p>" for line in (*lines, *_share(run, typical or overall)))
    facts = [(k, str(v)) for k, v in run.machine.items() if k in ("device", "processor", "threads", "torch")]
    drawn = chart("Speed", [Line("", speeds)], unit="tokens per second, in steps", zero=True) if len(speeds) > 1 else ""
    return page_section("Speed", "", f"<div class=charts><div>{body}{_definition_list(facts)}</div>{drawn}</div>")


def _share(run: Contents, speed: float) -> list[str]:
    """The share of the peak, and how it is computed."""
    f, one = run.flops, run.machine.get("product_flops")
    if run.recipe.record.tokens_per_row:
        return ["Pairs differ in length, and with them the FLOPs of a token: no share of the peak is given."]
    each = (
        f"3 × ({scaled(f.products, 'FLOP')} in products with weights + {scaled(f.attention, 'FLOP')} in attention) = "
        f"{scaled(f.training, 'FLOP')} per token, forward and backward"
    )
    if not isinstance(one, int | float) or not one > 0:
        return [each]
    processes = run.n_processes
    peak = one * processes
    share, word = f.training * speed / peak, run.machine.get("precision", "this precision")
    formula = f"{scaled(f.training, 'FLOP')} × {speed:,.0f} tokens/s / {scaled(float(peak), 'FLOP/s')} = {share:.1%}"
    reach = "what this machine's large matrix products reach"
    reach += "" if processes == 1 else f" in each of {processes} processes"
    said = f"{share:.1%} of {reach} in {word}, timed as the run began."
    return [said, each, formula]


def _data(run: Contents) -> str:
    sources, parts = run.data.get("sources"), run.data.get("parts", {})
    if not sources:
        return ""
    rows = "".join(
        f"<tr><td class=path>{e(s['path'])}<td class=number>{s['n_bytes']:,}"
        f"<td class=number>{s['n_documents']:,}<td class=hash>{e(s['sha256'][:12])}"
        for s in sources[:FILES]
    )
    head = "<tr><th>file<th class=number>bytes<th class=number>documents<th>SHA-256"
    table = _table("the files that were read", head + rows)
    more = f"<p class=quiet>and {len(sources) - FILES:,} more files, in data.json</p>" if len(sources) > FILES else ""
    facts = _definition_list(_data_facts(run, sources, parts))
    return page_section("What it read", "", facts + table + more + _held_out(run) + _left_out(run))


def _held_out(run: Contents) -> str:
    """What is held out; of documents, which they are, or from which character on one is."""
    held_out = run.data.get("held_out") or {}
    n = run.data.get("parts", {}).get("held_out", {}).get("documents")
    counts = {s["path"]: s["n_documents"] for s in run.data["sources"]}
    listed = held_out.get("documents", [])
    head = f"<h3>Held out</h3><p class=quiet>{e(_sentence(held_out.get('note', '')))}</p>"
    if not listed:
        return head if held_out else ""
    rows = [_held_out_row(path, number, start, counts.get(path, 1)) for path, number, start in listed]
    columns = "<tr><th>file<th>document<th>held out"
    shown = _table("documents that are held out", columns + "".join(rows[:FILES]))
    more = rows[FILES:LISTED_DOCUMENTS]
    if more:
        folded = _table("more documents that are held out", columns + "".join(more))
        shown += f"<details><summary>{len(more):,} more</summary>{folded}</details>"
    beyond = (n or len(rows)) - min(len(rows), LISTED_DOCUMENTS)
    shown += f"<p class=quiet>and {beyond:,} more that are not listed here</p>" if beyond > 0 else ""
    return head + shown


def _held_out_row(path: str, number: int, start: int, of: int) -> str:
    """One document: its file, its number in a file of several, and which part of it."""
    which = f"{number + 1:,} of {of:,}" if of > 1 else "the file"
    part = f"from character {start + 1:,} on" if start else "all of it"
    return f"<tr><td class=path>{e(path)}<td>{which}<td>{part}"


def _data_facts(
    run: Contents, sources: list[dict[str, Any]], parts: dict[str, dict[str, Any]]
) -> list[tuple[str, str]]:
    data = run.data
    facts = [("files", f"{len(sources):,}"), ("bytes", f"{sum(s['n_bytes'] for s in sources):,}")]
    facts += [("documents", f"{data['documents']:,}")] if data.get("documents") else []
    facts += [("tokenizer", data["tokenizer"]["kind"])]
    for name, part in parts.items():
        n = part.get("tokens")
        facts += [(f"{name.replace('_', '-')} tokens", f"{n:,}")] if n is not None else []
    replaced, halves = (sum(s.get(name, 0) for s in sources) for name in ("replaced", "halves"))
    aside = data.get("set_aside")
    facts += [("set aside for the n-gram's share", f"{sum(stop - start for start, stop in aside):,}")] if aside else []
    facts += [("not UTF-8, replaced", f"{replaced:,}")] if replaced else []
    facts += [("lone surrogates in JSON, replaced", f"{halves:,}")] if halves else []
    facts += [("duplicates dropped", f"{data['duplicates']:,}")] if data.get("duplicates") else []
    facts += [("licence", data["licence"])] if data.get("licence") else []
    return facts + ([("SHA-256 of all", data["hash"][:12])] if data.get("hash") else [])


def _left_out(run: Contents) -> str:
    """The skipped files, and the reasons."""
    skipped = run.data.get("skipped")
    if not skipped:
        return ""
    rows = "".join(f"<tr><td class=path>{e(path)}<td>{e(reason)}" for path, reason in skipped[:FILES])
    more = f"<p class=quiet>and {len(skipped) - FILES:,} more, in data.json</p>" if len(skipped) > FILES else ""
    files = "1 file was" if len(skipped) == 1 else f"{len(skipped):,} files were"
    table = _table("the files that were skipped", rows) + more
    return f"<details><summary>{files} skipped</summary>{table}</details>"


def _table(label: str, rows: str) -> str:
    """A table that scrolls by itself if it is wider than the page, with the arrow keys too."""
    return f'<div class=scroll tabindex=0 role=region aria-label="{e(label)}"><table>{rows}</table></div>'


def _reproduction_section(run: Contents) -> str:
    note = "The same text, choices and seed; on the same machine the same run, bit for bit."
    t, decay = run.recipe.train, run.recipe.record.decay
    by_length = decay_of(t.schedule, run.recipe.n_steps, t.warmup)
    if decay != by_length:
        began = f"began to fall after step {decay[0]:,}" if decay else "has not begun to fall yet"
        note = (
            f"The same text, choices and seed, and as many steps. The learning rate of this run {began}, as the clock "
            f"or another length decided; the command lets it fall after step {by_length[0]:,}, so the weights differ."
        )
    if run.recipe.record.base is not None:
        path = run.recipe.record.base.path
        note += f" Its start is the same as long as {path} holds the weights that this one started from."
    if not run.command:
        note = "Its text came through a pipe and is kept nowhere: save it as a file, and name that in its place."
    choices = [(name, str(getattr(t, name))) for name in CHOICES]
    details = f"<details><summary>choices</summary>{_definition_list(choices)}</details>"
    if run.choices:
        details += f"<details><summary>how they were made</summary><pre>{e(chr(10).join(run.choices))}</pre></details>"
    command = f"<pre class=command>{e(run.command)}</pre>" if run.command else ""
    return page_section("Train it again", note, command + details)


CHOICES = (
    "objective",
    "optimizer",
    "learning_rate",
    "muon_learning_rate",
    "weight_decay",
    "schedule",
    "batch",
    "accumulate",
    "precision",
    "attention",
    "compile",
    "clip",
    "seed",
)


def page_section(title: str, note: str, body: str, kind: str = "") -> str:
    inside = f'<div class="{kind}">{body}</div>' if kind else body
    said = f"<p class=quiet>{e(note.strip())}</p>" if note else ""
    return f"<section><h2>{e(title)}</h2>{said}{inside}</section>"


def _definition_list(pairs: Sequence[tuple[str, str]]) -> str:
    return "<dl class=facts>" + "".join(f"<div><dt>{e(k)}</dt><dd>{e(v)}</dd></div>" for k, v in pairs) + "</dl>"


def _bars(rows: Sequence[tuple[str, str, float, str]]) -> str:
    """A name, a number and a bar for each row (name, number, share of the width, class)."""
    bars = (
        f'<span class="name{kind}">{e(name)}</span><span class="track">'
        f'<i class="{kind.strip()}" style="width:{share:.1%}"></i></span>'
        f'<span class="number{kind}">{e(number)}</span>'
        for name, number, share, kind in rows
    )
    return f'<div class="bars">{"".join(bars)}</div>'


def e(text: str) -> str:
    """Text escaped for HTML; invisible and direction-changing characters are shown by their number."""
    return html.escape(sanitize(text), quote=True)


@cache
def style() -> str:
    """The style sheet next to this file, and how all pages are printed."""
    package = resources.files("pellucid")
    sheets = (package.joinpath("report", "report.css"), package.joinpath("web", "common_print.css"))
    return "\n".join(sheet.read_text(encoding="utf-8").strip() for sheet in sheets)


def write_page(run: Path) -> Path:
    """Write report.html into the run's folder; if that fails, an older report stays."""
    path = run / "report.html"
    replace_file(path, page_of(Contents.of(run)).encode())
    return path
