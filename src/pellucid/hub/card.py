"""Write the model card: what the model is, what it was trained on, how exact its conversion is, and what was not
tested.
"""

from pathlib import Path
from typing import Any

import yaml

from pellucid.architecture import Architecture, field_options
from pellucid.hub.own_code import auto_classes
from pellucid.parameter_counts import count_active_parameters, count_parameters
from pellucid.runs.metrics import predicted_tokens
from pellucid.text.sanitize import sanitize

#: the names of licences that the hub knows (huggingface.co/docs/hub/repositories-licenses)
HUB_LICENCES = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
    afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl
    openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
    fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
    other
    """.split()  # noqa: SIM905 (a list would have a line for each)
)
#: stated on every card, because it is true of every conversion
UNTESTED = (
    "behaviour on any task: only losses on held-out text of the same source, where they are stated above",
    "bias, harm, memorised personal data and fitness for any use",
    "quantised forms, other devices than the one of the conversion, contexts longer than the probe of the parity line",
)


def write_card(
    folder: Path,
    a: Architecture,
    layout: str,
    parity: str,
    licence: str | None,
    about: dict[str, Any],
    code: bool = False,
) -> Path:
    """Write README.md with the hub's metadata at the top.

    about  may hold source, notes, data, recipe, training and losses; base_model, the name on the hub of the model that
           merged adapters change, or base_folder, the name of its folder; and part_measured, the number of held-out
           tokens that the held-out losses are over where it is not all of them
    code   whether transformers opens the folder with code in it
    """
    front: dict[str, Any] = {"library_name": {"huggingface": "transformers"}.get(layout, layout)}
    front |= licence_entries(licence)
    if base := about.get("base_model"):
        front["base_model"] = base
    front["tags"] = ["pellucid"]
    if a.attention.mask == "causal" and a.encoder is None:
        front["pipeline_tag"] = "text-generation"
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True).rstrip("\n")
    lines = ["---", head, "---", "", f"# {Path(str(about.get('source', 'model'))).name}", ""]
    lines += [f"Written by Pellucid from `{about.get('source', 'a model in memory')}`.", ""]
    if base := about.get("base_folder"):
        lines += [f"It is the model of the folder `{base}`, with low-rank adapters merged into it.", ""]
    lines += [*(f"- {said}" for said in (parity, *about.get("notes", ()))), ""]
    has_tokenizer = any((folder / name).exists() for name in ("tokenizer_config.json", "tokenizer.json"))
    lines += ["## How to open it", "", *_how_to_open(a, layout, code, has_tokenizer), ""]
    lines += ["## Architecture", "", *_architecture(a), ""]
    losses = [f"- {LOSSES.get(n, n)}: {v:.4f}" for n, v in about.get("losses", {}).items()]
    if part := about.get("part_measured"):
        losses.append(f"- the held-out numbers are over the first {part:,} held-out tokens, not all of them")
    lines += ["## Losses", "", *(losses or [_UNKNOWN]), ""]
    lines += ["## Data", "", *_data(about.get("data")), ""]
    if training := _training(about.get("recipe", {}), about.get("training", {}), about.get("data") or {}, a):
        lines += ["## Training", "", *training, ""]
    lines += ["## Not tested", "", *(f"- {what}" for what in UNTESTED), ""]
    lines += ["## Licence", "", licence or "Not stated by the author of this folder.", ""]
    path = folder / "README.md"
    # names of files need not be UTF-8
    path.write_text(sanitize("\n".join(lines)), encoding="utf-8", newline="\n")
    return path


def licence_entries(licence: str | None) -> dict[str, str]:
    """The hub's entries for a licence: one of the names that it knows, or `other` with the text as its name."""
    if licence is None:
        return {"license": "unknown"}
    known = licence.strip().lower()
    return {"license": known} if known in HUB_LICENCES else {"license": "other", "license_name": licence}


#: the metrics of a run, by their names in metrics.jsonl
LOSSES = {
    "loss": "training loss of the last step, nats per token",
    "held_out_loss": "held-out loss, nats per token",
    "bits_per_byte": "bits per byte of the held-out text",
}


def _how_to_open(a: Architecture, layout: str, code: bool, has_tokenizer: bool) -> list[str]:
    """The lines of Python that open the folder, and the packages they need."""
    if layout != "huggingface":
        python = ["from loader import load  # loader.py of this folder", "", 'network = load("FOLDER")']
        return ["```python", *python, "```", "", 'It needs torch and safetensors. Pellucid: `pellucid.load("FOLDER")`.']
    auto = list(auto_classes(a))[-1]
    trusted = ", trust_remote_code=True" if code else ""
    python = [
        f"from transformers import {auto}{', AutoTokenizer' if has_tokenizer else ''}",
        "",
        f'model = {auto}.from_pretrained("FOLDER"{trusted})',
    ]
    if has_tokenizer:
        python.append(f'tokenizer = AutoTokenizer.from_pretrained("FOLDER"{trusted})')
    why = (
        "transformers (5 or newer) runs modeling_pellucid.py of this folder, which Pellucid wrote from its own source. "
        'It needs torch and no other package. `pellucid.load("FOLDER")` reads the configuration and the weights, and '
        "runs none of it."
    )
    return ["```python", *python, "```", "", why if code else 'Pellucid: `pellucid.load("FOLDER")`.']


_UNKNOWN = "Unknown to the author of this folder."


def _architecture(a: Architecture) -> list[str]:
    """The sizes and every option of the architecture."""
    values = a.to_dict()
    sizes = [f"- parameters: {count_parameters(a)['total']:,}"]
    sizes += [f"- {name}: {values[name]}" for name in ("n_vocab", "n_ctx", "d_model", "n_layers")]
    sizes += [f"- attention.n_heads: {a.n_heads}", f"- attention.n_kv_heads: {a.n_kv_heads}", f"- mlp.d_ff: {a.d_ff}"]
    if a.mlp.experts:
        sizes.insert(1, f"- parameters that one position uses: {count_active_parameters(a):,}")
        sizes += [f"- mlp.{name}: {values['mlp'][name]}" for name in ("experts", "experts_per_token", "shared_d_ff")]
    for name, _ in field_options():
        part, _, last = name.rpartition(".")
        sizes.append(f"- {name}: {(values[part] if part else values)[last]}")
    return sizes


def _data(data: dict[str, Any] | None) -> list[str]:
    if not data:
        return [_UNKNOWN]
    rows = [f"- `{s.get('path')}`: {s.get('n_bytes', 0):,} bytes, SHA-256 {s.get('sha256')}" for s in data["sources"]]
    more = [f"- and {len(rows) - 20} more files"] if len(rows) > 20 else []
    split = ", ".join(f"{name} = {value}" for name, value in (data.get("split") or {}).items())
    return [*rows[:20], *more, f"- split: {split or 'unknown'}"]


#: the options that describe a training, as the recipe has them when the run starts
CHOICES = (
    ("objective", "objective"),
    ("rows in a step", ""),
    ("optimizer", "optimizer"),
    ("largest learning rate", "learning_rate"),
    ("largest learning rate of Muon", "muon_learning_rate"),
    ("weight decay", "weight_decay"),
    ("gradient clipped to", "clip"),
    ("schedule", "schedule"),
    ("precision of matrix products", "precision"),
    ("seed", "seed"),
)


def _training(recipe: dict[str, Any], training: dict[str, Any], data: dict[str, Any], a: Architecture) -> list[str]:
    """What happened, then the options. Options that the recipe leaves open or that the run did not use are left out."""
    chosen = recipe.get("train")
    if not chosen:
        return []
    rows = [("steps taken", _steps(training, recipe)), ("tokens seen", _tokens(training, data))]
    if seconds := training.get("seconds"):
        rows.append(("minutes", f"{seconds / 60:,.2f}, with measuring, sampling and saving"))
    rows += _started_from(recipe)
    values = chosen | {"": chosen["batch"] * max(1, chosen["accumulate"])}
    unused = {"muon_learning_rate"} if chosen["optimizer"] != "muon" else set()
    unused |= {"clip"} if not chosen["clip"] else set()
    rows += [(label, values[name]) for label, name in CHOICES if name not in unused and values.get(name) is not None]
    if chosen["objective"] == "masked":
        rows.append(("share of tokens hidden", chosen["mask_share"]))
    machine = training.get("machine", {})
    if on := ", ".join(str(machine[k]) for k in ("device", "processor") if machine.get(k)):
        rows.append(("machine", on))
    return [f"- {label}: {value}" for label, value in rows if value != ""]


def _steps(training: dict[str, Any], recipe: dict[str, Any]) -> str:
    """The steps that led to the checkpoint, and the run's last and planned steps if they are larger."""
    if "steps" not in training:
        return ""
    taken, last = training["steps"], training["last_step"]
    said = f"{taken:,}"
    said += f" (this checkpoint; the run went to step {last:,})" if last > taken else ""
    planned = recipe["decay"][1] if recipe.get("decay") else recipe.get("planned") or recipe["train"]["steps"]
    said += f", of {planned:,} planned" if last < planned else ""
    over = training.get("passed_over")
    return said + (f"; {over:,} of them were skipped, because their loss or gradient was not finite" if over else "")


def _tokens(training: dict[str, Any], data: dict[str, Any]) -> str:
    """The number of training tokens, and how many epochs of the training text that is."""
    if "tokens" not in training:
        return ""
    known = predicted_tokens(data, "train")
    known = known and known - sum(stop - start for start, stop in data.get("set_aside", ()))
    passes = f", {training['tokens'] / known:.2f} times the {known:,} of the training text" if known else ""
    return f"{training['tokens']:,}{passes}"


def _started_from(recipe: dict[str, Any]) -> list[tuple[str, str]]:
    """The model that the run started from, and its adapters."""
    base, adapt = recipe.get("base"), recipe.get("adapt") or {}
    rows = [("started from", f"`{Path(str(base['path'])).name}`")] if base else []
    if adapt.get("rank"):
        alpha = adapt.get("alpha") or 2 * adapt["rank"]
        rows.append(("adapters", f"rank {adapt['rank']}, alpha {alpha:g}, of {adapt.get('modules')}; merged here"))
    return rows
