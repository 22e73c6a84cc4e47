"""The command that trains dictionaries of a model's features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.options import DEVICE, MODEL, TrustOption, above, at_least, command, option, trust_of
from pellucid.cli.train import OutputOptions, parse_fields, print_end


@dataclass(frozen=True)
class DictionaryOptions:
    """What is trained: one dictionary for each layer."""

    n_features: Annotated[int | None, option("N", default="16 for each coordinate"), at_least(1)] = None
    """Learn this many features in each layer."""
    active: Annotated[int | None, option("K", default="32"), at_least(1)] = None
    """Keep this many features active at a position, on average."""
    tensor: Annotated[str | None, option("NAME", default="mlp")] = None
    """Explain mlp (what each MLP computes from what it reads), or a tensor of every block, such as resid_post."""
    checkpoint: Annotated[str | None, option("STEP", default="best")] = None
    """Explain this checkpoint of a run: best, last, or the number of a step."""
    trust: TrustOption = "no"


@dataclass(frozen=True)
class FeatureTrainingOptions:
    """The length of the training (give one of the first three), and its seed."""

    minutes: Annotated[float | None, option("N", default="3"), above(0)] = None
    """Train for this many minutes; with --resume, for this many more."""
    steps: Annotated[int | None, option("N"), at_least(1)] = None
    """Train for this many steps."""
    tokens: Annotated[int | None, option("N"), at_least(1)] = None
    """Train on this many tokens."""
    seed: Annotated[int | None, option("N", default="1337")] = None
    """Draw the first weights and the order of the text from this seed."""
    device: Annotated[str | None, option("DEVICE", default="auto"), DEVICE] = None
    """Compute on auto, cpu, cuda or mps; auto takes a GPU where there is one."""


@dataclass(frozen=True)
class FeatureOutputOptions(OutputOptions):
    """Where the run is written, and what is printed about it."""

    out: Annotated[Path | None, option("RUN", default="MODEL/features")] = None
    """Write the run into this folder, which must be new unless --resume is given."""


@command
def features_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    texts: Annotated[Positional[tuple[str, ...]], option("[TEXT ...]")] = (),
    *,
    dictionaries: DictionaryOptions,
    training: FeatureTrainingOptions,
    output: FeatureOutputOptions,
    set_: Annotated[UseAppendAction[tuple[str, ...]], option("FIELD=VALUE", name="set", repeatable=True)] = (),
) -> int:
    """Train dictionaries of a model's features, and measure what they explain.

    A transcoder for each layer learns sparse features of what the MLP reads, and what each adds to the stream. They
    are written in SAELens' layout, with what the model loses when they stand in the place of its MLPs.

    Args:
        model: Explain this run, saved model or Hugging Face folder.
        texts: Let the model read these files and folders; the text of the run unless given.
        set_: Set a field of the run, such as k=16 or train.learning_rate=0.002.

    Examples:
        pellucid features runs/my_texts --minutes 5
        pellucid features gpt2/ my_texts/ --tensor resid_post --out runs/features
    """
    import pellucid

    named: dict[str, Any] = {
        "model.n_features": dictionaries.n_features,
        "model.k": dictionaries.active,
        "model.tensor": dictionaries.tensor,
        "train.seed": training.seed,
        "train.device": training.device,
    }
    run = pellucid.train_features(
        model,
        *texts,
        out=output.out,
        fields=parse_fields(set_) | {name: value for name, value in named.items() if value is not None},
        resume=output.resume,
        minutes=training.minutes,
        steps=training.steps,
        tokens=training.tokens,
        checkpoint=dictionaries.checkpoint or "best",
        show="json" if output.as_json else "warnings" if output.quiet else True,
        explain=output.explain,
        trust=trust_of(dictionaries.trust),
    )
    return print_end(run, output)
