"""The model card: what a model is, what it was made of, how far it is apart from its other form, what nobody tested."""

from pathlib import Path
from typing import Any

from pellucid.architecture import Architecture, count_parameters, words

#: said on every card, because it is true of every conversion
UNTESTED = (
    "behaviour on any task: only losses on held-out text of the same source, where they are stated below",
    "bias, harm, memorised personal data and fitness for any use",
    "quantised forms, other devices than the one of the conversion, contexts longer than the probe of the parity line",
)


def write_card(
    folder: Path, a: Architecture, layout: str, parity: str, licence: str | None, about: dict[str, Any]
) -> Path:
    """README.md with the hub's metadata in front. `about` may hold source, data, recipe and losses."""
    library = {"huggingface": "transformers"}.get(layout, layout)
    recipe = about.get("recipe", {})
    front = ["---", f"library_name: {library}", f"license: {licence or 'unknown'}", "tags: [pellucid]"]
    if a.attention.mask == "causal" and a.encoder is None:
        front.append("pipeline_tag: text-generation")
    lines = [*front, "---", "", f"# {Path(str(about.get('source', 'model'))).name}", ""]
    lines += [f"Written by Pellucid from `{about.get('source', 'a model in memory')}`.", "", f"- {parity}", ""]
    lines += ["## Architecture", "", *_architecture(a), ""]
    lines += ["## Losses", "", *([f"- {n}: {v:.4f}" for n, v in about.get("losses", {}).items()] or [_UNKNOWN]), ""]
    lines += ["## Data", "", *_data(about.get("data")), ""]
    if train := recipe.get("train"):
        lines += ["## Training", "", *(f"- {name}: {value}" for name, value in train.items() if value != ""), ""]
    lines += ["## Not tested", "", *(f"- {what}" for what in UNTESTED), ""]
    lines += ["## Licence", "", licence or "Not stated by whoever wrote this model out.", ""]
    path = folder / "README.md"
    path.write_text("\n".join(lines), encoding="utf-8", newline="\n")
    return path


_UNKNOWN = "Not known to whoever wrote this model out."


def _architecture(a: Architecture) -> list[str]:
    """Sizes, and every word."""
    values = a.to_dict()
    sizes = [f"- parameters: {count_parameters(a)['total']:,}"]
    sizes += [f"- {name}: {values[name]}" for name in ("n_vocab", "n_ctx", "d_model", "n_layers")]
    sizes += [f"- attention.n_heads: {a.n_heads}", f"- attention.n_kv_heads: {a.n_kv_heads}", f"- mlp.d_ff: {a.d_ff}"]
    for name, _ in words():
        part, _, last = name.rpartition(".")
        sizes.append(f"- {name}: {(values[part] if part else values)[last]}")
    return sizes


def _data(data: dict[str, Any] | None) -> list[str]:
    if not data:
        return [_UNKNOWN]
    rows = [f"- `{s.get('path')}`: {s.get('n_bytes', 0):,} bytes, SHA-256 {s.get('sha256')}" for s in data["sources"]]
    more = [f"- and {len(rows) - 20} more files"] if len(rows) > 20 else []
    return [*rows[:20], *more, f"- split: {data.get('split')}"]
