"""The command that holds a conversation in the terminal."""

import io
import itertools
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from tyro.conf import Positional

from pellucid.cli.loading import loaded_from, transformer_of
from pellucid.cli.options import MODEL, ChatModelOptions, DrawnTokenOptions, at_least, command, option

if TYPE_CHECKING:
    from pellucid.generate.replies import Messages, ReplyPiece
    from pellucid.language_model import LanguageModel

HELP = """\
/regenerate  answer the last message again
/surprisal   show each token's surprisal in nats, or stop showing it
/new         forget the conversation and begin another
/help        list these commands
/quit        end; Ctrl-D does too
Ctrl-C stops an answer. A message that begins with a slash is written with two: //usr
"""
DIM, RESET_STYLE = "\x1b[2m", "\x1b[0m"


@dataclass(frozen=True)
class AnswerOptions(DrawnTokenOptions):
    """How the answers are chosen."""

    max_tokens: Annotated[int, option("N"), at_least(1)] = 400
    """Generate at most this many tokens for an answer."""


@command
def chat_command(
    model: Annotated[Positional[str], option("MODEL"), MODEL],
    *,
    system: Annotated[str | None, option("TEXT")] = None,
    surprisal: Annotated[bool, option()] = False,
    model_options: Annotated[ChatModelOptions, option(name="model")],
    answers: AnswerOptions,
) -> int:
    """Hold a conversation with a model.

    The model needs a chat template: it was trained on conversations (pellucid train), or its folder has one. /help
    lists what can be typed besides messages; Ctrl-C stops an answer, Ctrl-D ends. Messages may come from a file or
    another program too, one on each line.

    Args:
        model: Talk with this run, this saved model, or this name on the Hugging Face hub.
        system: Begin the conversation with these instructions, as its system message.
        surprisal: Show each token's surprisal in nats, as /surprisal does.

    Examples:
        pellucid chat runs/chats
        pellucid chat runs/chats --temperature 0 --surprisal
    """
    loaded = transformer_of(loaded_from(model, model_options), model)

    from pellucid.generate.choose_reader import GenerationRequest, choose_weights
    from pellucid.generate.replies import required

    required(loaded.chat_template)
    seed = secrets.randbits(31) if answers.seed is None else answers.seed
    options = {name: value for name, value in vars(answers).items() if name != "seed"}
    options["weights"] = model_options.weights
    if model_options.weights != "auto":
        request = GenerationRequest(loaded.network, answers.max_tokens)
        print(choose_weights(request, model_options.weights)[1], file=sys.stderr)
    conversation = Conversation(loaded, system=system, seed=seed, shows_surprisal=surprisal, options=options)
    conversation.check_instructions()
    if sys.stdin.isatty():
        with suppress(ImportError):
            import readline  # noqa: F401 (input() then edits lines and remembers them)
        print(f"{model}: /help lists the commands, Ctrl-D ends; seed {seed}", file=sys.stderr)
    answer_lines(conversation, lines_of(sys.stdin, conversation.out))
    return 0


@dataclass
class Conversation:
    """A conversation with a model, printed on `out`.

    messages         all of it, the system message first where there is one
    n_forgotten      messages at its beginning that no longer fit into the context
    """

    model: "LanguageModel"
    system: str | None = None
    seed: int = 0
    shows_surprisal: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    out: TextIO = field(default_factory=lambda: sys.stdout)
    messages: list[dict[str, str]] = field(default_factory=list)
    n_forgotten: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew, with the system message."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.n_forgotten = 0

    def check_instructions(self) -> None:
        """Raise GenerationError if the instructions leave no room for a message, ChatError if there can be none."""
        from pellucid.generate.errors import GenerationError
        from pellucid.generate.replies import required

        if self.system is None:
            return
        shortest = [*self.messages, {"role": "user", "content": "?"}]
        n_tokens = len(required(self.model.chat_template).encode(shortest, self.model.tokenizer))
        if n_tokens >= self.model.architecture.n_ctx:
            raise GenerationError(
                f"--system and a message of one character have {n_tokens} tokens, and the context has "
                f"{self.model.architecture.n_ctx}: shorten the instructions"
            )

    def take(self, line: str) -> bool:
        """Answer a line, or do what the command in it says; False ends the conversation."""
        try:
            line.encode("utf-8")
        except UnicodeEncodeError as error:
            self.say(
                f"this line is not UTF-8 from its character {error.start + 1} on and is left out: send it in UTF-8"
            )
            return True
        line = line.strip()
        if line == "/quit":
            return False
        if line in COMMANDS:
            COMMANDS[line](self)
        elif line.startswith("/") and not line.startswith("//"):
            self.say(f"there is no command {line.split()[0]}: /help lists them")
        elif line:
            self.messages.append({"role": "user", "content": line.removeprefix("/") if line[0] == "/" else line})
            self.answer()
        return True

    def answer(self) -> None:
        """Print the model's answer to the messages, and append it. Ctrl-C ends it early; what was printed stays."""
        from pellucid.generate.errors import GenerationError
        from pellucid.text.chat_template import ChatError

        printed: list[str] = []
        try:
            for piece in self.pieces():
                printed.append(piece.text)
        except KeyboardInterrupt as interrupt:
            if interrupt.args:  # SIGTERM ends the program
                raise
            self.out.write(" [stopped]")
        except (ChatError, GenerationError) as error:
            self.messages.pop()
            self.say(str(error))
            return
        self.out.write("\n")
        self.out.flush()
        self.messages.append({"role": "assistant", "content": "".join(printed)})

    def pieces(self) -> "Iterator[ReplyPiece]":
        """The pieces of an answer, each printed."""
        from pellucid.text.sanitize import sanitize

        waiting = 0.0
        for piece in self.model.reply(self.recent(), seed=self.seed + next(self.numbers), **self.options):
            yield piece
            self.out.write(sanitize(piece.text))
            waiting += piece.surprisal  # of tokens that are part of a character
            if self.shows_surprisal and (piece.text or piece.finish_reason == "end"):
                end = "end " if piece.finish_reason == "end" and not piece.text else ""
                self.out.write(self.dimmed(f"[{end}{waiting:.2f}]"))
                waiting = 0.0
            self.out.flush()

    def recent(self) -> "Messages":
        """The messages that fit into the context; says so once where earlier ones no longer do.

        Raises GenerationError for a last message that does not fit.
        """
        from pellucid.generate.errors import GenerationError
        from pellucid.generate.replies import recent_messages, required, room_for_reply
        from pellucid.text.read.chunks import counted

        n_ctx, template = self.model.architecture.n_ctx, required(self.model.chat_template)
        room = room_for_reply(n_ctx, self.options.get("max_tokens"))
        messages = recent_messages(template, self.model.tokenizer, self.messages, n_ctx - room)
        n_tokens = len(template.encode(messages, self.model.tokenizer))
        if n_tokens >= n_ctx:  # one message that nothing makes room for
            what = "this message has" if self.system is None else "this message and the instructions together have"
            raise GenerationError(f"{what} {n_tokens} tokens, and the context has {n_ctx}: shorten the message")
        forgotten = len(self.messages) - len(messages)
        if forgotten > self.n_forgotten:
            self.say(f"(no longer in the context of {n_ctx} tokens: the first {counted(forgotten, 'message')})")
        self.n_forgotten = forgotten
        return messages

    def regenerate(self) -> None:
        """Answer the last message again."""
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages or self.messages[-1]["role"] != "user":
            self.say("there is no message to answer again")
        else:
            self.answer()

    def toggle_surprisal(self) -> None:
        """Show each token's surprisal from now on, or no longer."""
        self.shows_surprisal = not self.shows_surprisal
        self.say(f"each token's surprisal is {'' if self.shows_surprisal else 'not '}shown, in nats")

    def say(self, text: str) -> None:
        """Print a sentence that is not part of the conversation."""
        self.out.write(self.dimmed(text.rstrip("\n")) + "\n")
        self.out.flush()

    def dimmed(self, text: str) -> str:
        """The text in faint characters where the output is a terminal."""
        return f"{DIM}{text}{RESET_STYLE}" if self.out.isatty() else text


#: what a line may say besides a message
COMMANDS: dict[str, Callable[[Conversation], object]] = {
    "/help": lambda conversation: conversation.say(HELP),
    "/regenerate": Conversation.regenerate,
    "/surprisal": Conversation.toggle_surprisal,
    "/new": Conversation.clear,
}


def answer_lines(conversation: Conversation, lines: Iterator[str]) -> None:
    """Answer line by line until they end or one says /quit."""
    for line in lines:
        if not conversation.take(line):
            return


def lines_of(source: TextIO, out: TextIO) -> Iterator[str]:
    """The lines of a terminal, after a prompt, or of a file. Ctrl-C at the prompt drops the line."""
    if isinstance(source, io.TextIOWrapper):
        # a line that is not UTF-8 is refused by itself, and those after it are read
        source.reconfigure(errors="surrogateescape")
    if not source.isatty():
        yield from source
        return
    while True:
        try:
            line = input("> ")
        except EOFError:
            out.write("\n")
            return
        except KeyboardInterrupt as interrupt:
            if interrupt.args:
                raise
            out.write("\n(/quit or Ctrl-D ends)\n")
            continue
        yield line
