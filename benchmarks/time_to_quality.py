"""Held-out loss against wall-clock on tiny Shakespeare by characters: our default recipe beside nanoGPT's for CPUs.

    python -m benchmarks.time_to_quality --minutes 1.75 4 --nanogpt PATH --set train.precision=float32

The first 90 % are trained on; the loss, in nats per character, is over the whole last 10 %, each model at its own
context: strided by half a context, so that every character after the first half has at least that much before it
(what is compared), and by windows that do not overlap (what nanoGPT's own figures are nearest to). Seconds are those of
the whole process, from its start over reading, preparing and compiling to its last checkpoint. Text: the one that the
package brings. `--mix` says also what each of ours comes to where half of its probability is an n-gram's (`--mix` of
`pellucid score`), the seconds of both trainings added.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

import pellucid
from benchmarks.nanogpt import RECIPE, NanoGPT, run
from benchmarks.side_by_side import header, show
from benchmarks.strided_loss import Logits, nats
from pellucid.demo import bundled
from pellucid.predictors.mixture import mixed


def ours(text: Path, minutes: float, changes: list[str], folder: Path) -> tuple[float, Logits, Tensor, int, int, str]:
    """Train with the defaults: seconds, the last checkpoint's logits, the held-out ids, its context, steps and size."""
    out = folder / f"ours-{minutes:g}"
    given = [part for change in changes for part in ("--set", change)]
    command = [sys.executable, "-m", "pellucid", "train", str(text), "--tokenizer", "char", "--minutes", str(minutes)]
    seconds, _ = run([*command, *given, "--out", str(out)], Path.cwd())
    model = pellucid.load(out, checkpoint="last", device="cpu")
    whole = text.read_text(encoding="utf-8")
    ids = torch.tensor(model.tokenizer.encode(whole[int(0.9 * len(whole)) :]))
    a = model.architecture
    size = f"{a.d_model}/{a.n_layers}{', tables' if a.ngrams else ''}"
    return seconds, model.network.eval(), ids, a.n_ctx, model.provenance["step"], size


def counted(text: Path, order: int, folder: Path) -> tuple[float, Logits]:
    """An n-gram on the same characters: seconds of its process, and log-probabilities in the place of logits."""
    out = folder / "counted"
    choices = [f"order={order}", "text.tokenizer=char"]
    given = [part for change in choices for part in ("--set", change)]
    seconds, _ = run(
        [sys.executable, "-m", "pellucid", "train", str(text), "--predictor", "ngram", *given, "--out", str(out)],
        Path.cwd(),
    )
    return seconds, pellucid.load_predictor(out, device="cpu").network


def halved(a: Logits, b: Logits) -> Logits:
    """log of half of each one's probabilities, as `LanguageModel.mixed_with` mixes."""
    return lambda tokens: mixed(a(tokens).double().log_softmax(-1), b(tokens), 0.5)


def nanogpt(clone: Path, text: Path, steps: int, folder: Path) -> tuple[float, Logits, Tensor, int, int, str]:
    """The same of nanoGPT, in a copy of the clone."""
    whole = text.read_text(encoding="utf-8")
    border = int(0.9 * len(whole))
    peer = NanoGPT(clone, whole[:border], whole[border:], folder)
    seconds, _ = peer.train(steps)
    logits, n_ctx, taken = peer.logits()
    return seconds, logits, peer.held_out, n_ctx, taken, f"{RECIPE['n_embd']}/{RECIPE['n_layer']}"


def losses(logits: Logits, ids: Tensor, n_ctx: int) -> list[str]:
    """Nats per character, strided by half a context and by windows that do not overlap."""
    return [f"{nats(logits, ids, n_ctx, stride):.4f}" for stride in (max(1, n_ctx // 2), n_ctx)]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, nargs="*", default=[1.75], help="budgets of our recipe, one run each")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="as `pellucid train` has it")
    parser.add_argument("--mix", type=int, default=7, help="order of the n-gram each of ours is mixed with; 0: none")
    parser.add_argument("--nanogpt", type=Path, help="a clone of nanoGPT; left out without one")
    parser.add_argument("--nanogpt-steps", type=int, default=2000)
    parser.add_argument("--text", type=Path, default=bundled("shakespeare"))
    o = parser.parse_args()
    print(*header(torch.device("cpu"), ["pellucid"]), sep="\n")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {f"ours, {m:g} minutes": (lambda m=m: ours(o.text, m, o.set, folder)) for m in o.minutes}
        if o.nanogpt:
            clone = o.nanogpt.resolve()
            runs[f"nanoGPT, {o.nanogpt_steps:,} steps"] = lambda: nanogpt(clone, o.text, o.nanogpt_steps, folder)
        beside = counted(o.text, o.mix, folder) if o.mix else None
        for label, train in runs.items():
            seconds, logits, ids, n_ctx, steps, size = train()
            rows.append([label, f"{seconds:.0f}", size, f"{steps:,}", str(n_ctx), *losses(logits, ids, n_ctx)])
            if beside and label.startswith("ours"):
                both = losses(halved(logits, beside[1]), ids, n_ctx)
                name = f"  half an n-gram of order {o.mix}"
                rows.append([name, f"{seconds + beside[0]:.0f}", size, f"{steps:,}", str(n_ctx), *both])
    columns = ["", "seconds", "width/layers", "steps", "context", "strided, nats", "by windows, nats"]
    show("tiny Shakespeare by characters, the last 10 %", columns, rows)


if __name__ == "__main__":
    main()
