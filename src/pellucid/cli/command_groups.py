"""The groups of commands whose names have two words, such as `tokenizer train`."""

from collections.abc import Callable

from pellucid.cli.features import FEATURE_COMMANDS
from pellucid.cli.runs import RUN_COMMANDS
from pellucid.cli.sources import SOURCE_COMMANDS
from pellucid.cli.tokenizer import TOKENIZER_COMMANDS

#: by its first word, the commands of a group and what they are for
COMMAND_GROUPS: dict[str, tuple[dict[str, Callable[..., int]], str]] = {
    "tokenizer": (TOKENIZER_COMMANDS, "Make, use and look at tokenizers."),
    "runs": (RUN_COMMANDS, "List, compare, prune, rename and delete runs."),
    "features": (FEATURE_COMMANDS, "Learn sparse features of a model, look at them, and draw graphs of predictions."),
    "sources": (SOURCE_COMMANDS, "Find where a text is from, in the training text of a run."),
}
#: by the first word of a group, the command that is meant where a name of none follows
DEFAULT_COMMANDS = {"runs": "list", "sources": "find", "features": "train"}
