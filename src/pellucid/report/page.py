"""The report of a run: one HTML file that fetches nothing, runs nothing, and opens from disk."""

import html
import statistics
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pellucid.plan.telling import duration, scaled
from pellucid.report.charts import Level, Line, chart
from pellucid.report.contents import Contents
from pellucid.report.drawing import draw
from pellucid.yardstick import verdict

#: no request leaves the page and no script runs, whatever a text in it says
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: samples that are shown at once; files that are listed
SAMPLES, FILES = 3, 12

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
    sections = (_head, _warnings, _losses, _yardstick, _samples, _architecture, _course, _speed, _data, _again)
    body = "\n".join(made for section in sections if (made := section(run)))
    return PAGE.format(policy=POLICY, title=e(f"{run.run.name}: a training run"), style=style(), body=body)


def _head(run: Contents) -> str:
    a, last = run.recipe.model, _last(run)
    facts = [("parameters", f"{run.parameters['total']:,}"), ("blocks", f"{a.n_layers}"), ("width", f"{a.d_model:,}")]
    facts += [("context", f"{a.n_ctx:,}"), ("vocabulary", f"{a.n_vocab:,}"), ("steps", _steps(run))]
    facts += [("trained for", duration(run.seconds))] if run.seconds else []
    big = ""
    if last:
        big = (
            f'<p class="big"><b>{last["bits_per_byte"]:.3f}</b> bits per byte of held-out text'
            f" <span>{last['held_out_loss']:.4f} nats per token, after step {last['step']:,}</span></p>"
        )
    return f"<header><h1>{e(run.run.name)}</h1>{big}{_facts(facts)}</header>"


def _steps(run: Contents) -> str:
    done = max((row["step"] for row in run.rows), default=0)
    return f"{done:,}" if done == run.recipe.n_steps else f"{done:,} of {run.recipe.n_steps:,}"


def _last(run: Contents) -> dict[str, Any]:
    return next((row for row in reversed(run.rows) if "held_out_loss" in row and row.get("bits_per_byte")), {})


def _warnings(run: Contents) -> str:
    said = [*(run.yardstick.warnings if run.yardstick else []), *(text for _, text in run.texts("warning"))]
    skipped = sum(1 for row in run.rows if row.get("skipped") is True)
    said += [f"{skipped} steps were passed over: their loss or gradient was not finite"] if skipped else []
    return "".join(f'<p class="warning">{e(text)}</p>' for text in said)


def _losses(run: Contents) -> str:
    levels = [Level(p.name, p.bits_per_byte) for p in run.yardstick.predictors] if run.yardstick else []
    bits = chart("Held-out text", [Line("", run.series("bits_per_byte"))], levels, "bits per byte")
    lines = [Line("training", run.series("loss"), "held-out"), Line("held-out", run.series("held_out_loss"))]
    return _section("Learning", "", bits + chart("Loss", lines, unit="nats per token"), "charts")


def _yardstick(run: Contents) -> str:
    found, last = run.yardstick, _last(run)
    if found is None:
        return ""
    rows = [(p.name, p.bits_per_byte, "") for p in found.predictors]
    rows += [("this model", last["bits_per_byte"], " mine")] if last else []
    most = max(bits for _, bits, _ in rows)
    bars = _bars([(name, f"{bits:.3f}", bits / most, kind) for name, bits, kind in rows])
    said = verdict(found, last["bits_per_byte"]) if last else found.reach
    share = found.repeats
    windows = f"{share.windows:,} held-out windows of {share.length} tokens"
    also = f"Of {windows} {share.share:.1%} also stand in the training text."
    note = f"Bits per byte of the same held-out text; less is better. {said[0].upper()}{said[1:]}. {also} {found.note}"
    return _section("Beside counting", note, bars)


def _samples(run: Contents) -> str:
    texts = run.texts("sample")
    if not texts:
        return ""
    picked = sorted({round(i * (len(texts) - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    shown = "".join(
        f"<figure class=sample><figcaption>step {texts[i][0]:,}</figcaption><pre>{e(texts[i][1])}</pre></figure>"
        for i in picked
    )
    rest = [text for i, text in enumerate(texts) if i not in picked]
    more = "".join(f"<p class=quiet>step {step:,}</p><pre>{e(text)}</pre>" for step, text in rest)
    folded = f"<details><summary>{len(rest)} more</summary>{more}</details>" if rest else ""
    return _section(
        "What it writes", "Drawn at temperature 0.8 as training went on.", f"<div class=samples>{shown}</div>{folded}"
    )


def _architecture(run: Contents) -> str:
    parts, total = run.parameters, run.parameters["total"]
    bars = _bars([(p, f"{n:,}", n / total, "") for p, n in parts.items() if p != "total"])
    beside = f"<div><h3>Parameters by part, {total:,} in all</h3>{bars}</div>"
    return _section("What it computes", "", f"<div class=two><div>{draw(run.recipe.model)}</div>{beside}</div>")


def _course(run: Contents) -> str:
    made = chart("Learning rate", [Line("", run.series("learning_rate"))], zero=True)
    made += chart("Gradient norm", [Line("", run.series("grad_norm"))], unit="before clipping", zero=True)
    made += chart("Speed", [Line("", run.speeds())], unit="tokens per second", zero=True)
    return _section("The course of training", "", made, "charts") if made else ""


def _speed(run: Contents) -> str:
    speeds, f = [v for _, v in run.speeds()], run.flops
    if not speeds:
        return ""
    typical = statistics.median(speeds)
    lines = [f"{typical:,.0f} tokens per second (the median over steps), {duration(run.seconds)} in all."]
    formula = (
        f"3 x ({scaled(f.products)} in products with weights + {scaled(f.attention)} in attention) = "
        f"{scaled(f.training)} FLOPs per token"
    )
    peak = run.machine.get("product_flops")
    if isinstance(peak, int | float) and peak > 0:
        share = f.training * typical / peak
        word = run.machine.get("precision", "this precision")
        lines.append(f"{share:.0%} of what large products reach on this machine in {word}.")
        formula += f"; x {typical:,.0f} tokens/s / {scaled(float(peak), 'FLOP/s')} = {share:.1%}"
    facts = [(k, str(v)) for k, v in run.machine.items() if k in ("device", "processor", "threads", "torch")]
    body = "".join(f"<p>{e(line)}</p>" for line in lines) + f"<p class=formula>{e(formula)}</p>" + _facts(facts)
    return _section("Speed", "", body)


def _data(run: Contents) -> str:
    sources, parts = run.data.get("sources", []), run.data.get("parts", {})
    if not sources or not isinstance(sources, list):
        return ""
    n_bytes = sum(s.get("n_bytes", 0) for s in sources)
    tokenizer = run.data.get("tokenizer", {})
    facts = [("files", f"{len(sources):,}"), ("bytes", f"{n_bytes:,}"), ("tokenizer", str(tokenizer.get("kind", "")))]
    for name, part in parts.items() if isinstance(parts, dict) else ():
        n = part.get("tokens", part.get("target_tokens"))
        facts += [(f"{name.replace('_', '-')} tokens", f"{n:,}")] if isinstance(n, int) else []
    rows = "".join(
        f"<tr><td class=path>{e(str(s.get('path', '')))}<td class=number>{s.get('n_bytes', 0):,}"
        f"<td class=hash>{e(str(s.get('sha256', ''))[:12])}"
        for s in sources[:FILES]
    )
    table = f"<div class=scroll><table><tr><th>file<th class=number>bytes<th>SHA-256{rows}</table></div>"
    more = f"<p class=quiet>and {len(sources) - FILES:,} more files, in data.json</p>" if len(sources) > FILES else ""
    skipped = run.data.get("skipped") or []
    more += f"<p class=quiet>{len(skipped):,} files were skipped; data.json says why</p>" if skipped else ""
    return _section("What it read", "", _facts(facts) + table + more)


def _again(run: Contents) -> str:
    note = "The same text, choices and seed; on the same machine the same run, bit for bit."
    if len(run.recipe.segments) > 1:
        note = "This run was made longer after it had begun; the command trains its last length in one go."
    t = run.recipe.train
    choices = [(name, str(getattr(t, name))) for name in CHOICES]
    details = f"<details><summary>choices</summary>{_facts(choices)}</details>"
    return _section("Train it again", note, f"<pre class=command>{e(run.command)}</pre>{details}")


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


def _section(title: str, note: str, body: str, kind: str = "") -> str:
    inside = f'<div class="{kind}">{body}</div>' if kind else body
    said = f"<p class=quiet>{e(note.strip())}</p>" if note else ""
    return f"<section><h2>{e(title)}</h2>{said}{inside}</section>"


def _facts(pairs: Sequence[tuple[str, str]]) -> str:
    return "<dl class=facts>" + "".join(f"<div><dt>{e(k)}</dt><dd>{e(v)}</dd></div>" for k, v in pairs) + "</dl>"


def _bars(rows: Sequence[tuple[str, str, float, str]]) -> str:
    """A name, a number and a bar for each: (name, number, share of the width, class)."""
    made = (
        f'<span class="name{kind}">{e(name)}</span><span class="track">'
        f'<i class="{kind.strip()}" style="width:{share:.1%}"></i></span>'
        f'<span class="number{kind}">{e(number)}</span>'
        for name, number, share, kind in rows
    )
    return f'<div class="bars">{"".join(made)}</div>'


def e(text: str) -> str:
    """Text as HTML shows it; half of a surrogate pair, which no file can hold, by its number."""
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"), quote=True)


@cache
def style() -> str:
    """The style sheet beside this file."""
    return resources.files("pellucid.report").joinpath("report.css").read_text(encoding="utf-8").strip()


def write_page(run: Path) -> Path:
    """report.html in the run's folder, in place of an older one, or as it was if that fails."""
    path = run / "report.html"
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(page_of(Contents.of(run)), encoding="utf-8", newline="\n")
    aside.replace(path)
    return path
