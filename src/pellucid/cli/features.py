"""The commands that learn sparse features of a model, show them, and draw graphs of its predictions."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, UseAppendAction

from pellucid.cli.options import (
    DEVICE,
    FOLDER,
    MODEL,
    OptionError,
    TrustOption,
    above,
    at_least,
    command,
    option,
    trust_of,
)
from pellucid.cli.train import OutputOptions, parse_fields, print_end

if TYPE_CHECKING:
    from pellucid.features_run import Features

#: an argument: the folder of a run of dictionaries
FeaturesRun = Annotated[Positional[str], option("FEATURES"), FOLDER]
#: options of the commands that read dictionaries
AsJson = Annotated[bool, option(name="json")]


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
def train_features_command(
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
        pellucid features train runs/my_texts --minutes 5
        pellucid features train gpt2/ my_texts/ --tensor resid_post --out runs/f
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


def opened_features(run: str, trust: Any) -> "Features":
    """The dictionaries in the folder of their run."""
    import pellucid

    return pellucid.load_features(run, trust=trust_of(trust))


@command
def active_features_command(
    run: FeaturesRun,
    text: Annotated[Positional[str], option("TEXT")],
    *,
    more_than: Annotated[str, option("TEXT", default="all that are active")] = "",
    as_json: AsJson = False,
    trust: TrustOption = "no",
) -> int:
    """List the features that are active in a text, the highest first.

    Args:
        run: Use the dictionaries of this run.
        text: Let the model read this text.
        more_than: List the features that are higher than in this other text, by how much.
        as_json: Print all of them as JSON.

    Examples:
        pellucid features active runs/my_texts/features "the king of England"
        pellucid features active runs/my_texts/features "king" --more-than "queen"
    """
    result = opened_features(run, trust).active(text, more_than=more_than)
    print(json.dumps([row._asdict() for row in result.rows], ensure_ascii=False) if as_json else result)
    return 0


@command
def feature_card_command(
    run: FeaturesRun,
    feature: Annotated[Positional[str], option("LAYER.NUMBER")],
    *,
    tokens: Annotated[int | None, option("N", default="65,536"), at_least(1)] = None,
    as_json: AsJson = False,
    trust: TrustOption = "no",
) -> int:
    """Show where a feature is active in the training text, and what it raises.

    Args:
        run: Use the dictionaries of this run.
        feature: Show this feature, such as 0.638: number 638 of layer 0.
        tokens: Read this many tokens of the training text, evenly spread.
        as_json: Print the card as JSON.

    Examples:
        pellucid features card runs/my_texts/features 0.638
        pellucid features card runs/my_texts/features 1.17 --tokens 200000
    """
    from pellucid.features.cards import READ_TOKENS

    layer, _, number = feature.partition(".")
    if not (layer.isdigit() and number.isdigit()):
        raise OptionError(f"{feature!r} is no feature: expected LAYER.NUMBER, such as 0.638")
    card = opened_features(run, trust).card(int(layer), int(number), n_tokens=tokens or READ_TOKENS)
    print(json.dumps(asdict(card), ensure_ascii=False) if as_json else card)
    return 0


@command
def feature_graph_command(
    run: FeaturesRun,
    text: Annotated[Positional[str], option("TEXT")],
    *,
    position: Annotated[int, option("N", default="the last")] = -1,
    all_nodes: Annotated[bool, option()] = False,
    as_json: AsJson = False,
    trust: TrustOption = "no",
) -> int:
    """Draw the attribution graph of what the model predicts after a text.

    Every node is an exact sum of its inputs: features, tokens, and the errors of the dictionaries.

    Args:
        run: Use the dictionaries of this run.
        text: Explain the prediction after this text.
        position: Explain the prediction at this position of the text instead.
        all_nodes: Leave no node out, however small its influence.
        as_json: Print nodes and edges as JSON.

    Examples:
        pellucid features graph runs/my_texts/features "My lord, the king is"
        pellucid features graph runs/my_texts/features "To be, or not" --json
    """
    graph = opened_features(run, trust).graph(text, pos=position)
    graph = graph if all_nodes else graph.prune()
    print(json.dumps(graph.to_dict(), ensure_ascii=False) if as_json else graph)
    return 0


FEATURE_COMMANDS: dict[str, Callable[..., int]] = {
    "train": train_features_command,
    "active": active_features_command,
    "card": feature_card_command,
    "graph": feature_graph_command,
}
