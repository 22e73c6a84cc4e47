"""A model folder that was opened: its architecture, its tensors, its tokenizer and its chat template."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.families import LazyStateDict, each_to_ours, unknown_entries
from pellucid.hub.files import GENERATION, NOTES, read_object
from pellucid.hub.shards import Shards
from pellucid.hub.tables import Family
from pellucid.hub.text_towers import TextTower
from pellucid.model_names import FolderError
from pellucid.text.chat_template import ChatError, ChatTemplate, read_chat_template
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.base import IDS_FILE, NoEndError
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer, tokenizer_files
from pellucid.trust import Trust

#: what is said of a folder without the files of a tokenizer
NO_TOKENIZER = "holds no tokenizer (tokenizer.json, vocab.json and merges.txt, or vocab.txt)"
#: what mBART's tokenizers have
LANGUAGES = (
    "codes of languages, such as en_XX, which stand beside sources and targets, and which Pellucid would leave out"
)


class LoadWarning(UserWarning):
    """A model was opened, but its files differ from what a user may expect."""


@dataclass(frozen=True)
class Note:
    """A sentence about a model that was opened.

    affects  texts: how the model's texts are read here; model: what it computes or lacks, which is true of all that is
             made of it too, so that a saved or converted model has the note with it
    """

    sentence: str
    affects: Literal["texts", "model"]


@dataclass(frozen=True)
class TextRules:
    """How a model's texts are read.

    tokenizer  reads ids where the files hold no tokenizer that can be used; `why_ids` says then what they hold
    notes      what differs from what a user may expect
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    why_ids: str = ""
    notes: tuple[Note, ...] = ()

    @property
    def own_tokenizer(self) -> Tokenizer | None:
        """None where it reads ids."""
        return None if isinstance(self.tokenizer, IdTokenizer) else self.tokenizer


@dataclass(frozen=True)
class Folder:
    """A model folder. `config` is the hub's config.json, {} in our layout; `family` is None for our layout.

    `adapter` is the folder of low-rank changes to the model in `path`, whose tokenizer and chat template are used where
    it has them; `files` are the mapped files behind `shards`; `tower` is set where the folder's model reads images too,
    and this is its language model alone; `file_notes` are sentences about the files themselves.
    """

    path: Path
    architecture: Architecture
    family: Family | None
    config: dict[str, Any]
    shards: Mapping[str, Tensor]
    trust: Trust = False
    adapter: Path | None = None
    files: Shards | None = None
    tower: TextTower | None = None
    file_notes: tuple[str, ...] = ()

    @property
    def their_class(self) -> str:
        """The class of transformers that opens the folder, "" for our layout."""
        return self.tower.model_class if self.tower else self.family.model_class if self.family else ""

    def ours(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under our name, one at a time, in the precision of the files; a tied embedding once."""
        ours = each_to_ours(self.shards, self.config, self.family) if self.family else iter(self.shards.items())
        return self.files.released(ours) if self.files else ours

    def state(self) -> Mapping[str, Tensor]:
        """The same by name, each read when it is looked up; `ours` checks what this does not."""
        return LazyStateDict(self.shards, self.config, self.family) if self.family else self.shards

    @property
    def why_whole(self) -> str:
        """Why no tensor can be read by itself, "" where each can."""
        if self.adapter is not None and self.family is not None:
            return "an adapter is added to its weights as they are read"
        return ""

    def text_rules(self, replacement: Tokenizer | str | Path | None = None) -> TextRules:
        """How texts are read, by the folder's tokenizer or by `replacement`, a tokenizer or its file.

        Raises FolderError if text has ids without a row of the embedding.
        """
        own, why_ids = self.stored_tokenizer() if replacement is None else (replacement, "")
        tokenizer = self.ids() if own is None else self.checked_tokenizer(own)
        chat_template, why_none = self.stored_chat_template()
        notes = [Note(sentence, "texts") for sentence in self.notes_on_texts(tokenizer, why_ids)]
        notes += [*self.notes_on_model(), *(Note(sentence, "model") for sentence in why_none)]
        return TextRules(tokenizer, chat_template, why_ids, tuple(notes))

    def stored_tokenizer(self) -> tuple[Tokenizer | None, str]:
        """The tokenizer of the folder, an adapter's own before its base's; or None, and what is said of the folder."""
        folders = [self.path] if self.adapter is None else [self.adapter, self.path]
        source = next((folder for folder in folders if tokenizer_files(folder)), None)
        if source is None:
            return None, NO_TOKENIZER
        try:
            tokenizer = load_tokenizer(source, trust=self.trust, ends=self.end_ids)
        except NoEndError as error:
            return None, f"holds a tokenizer that cannot be used ({error})"
        if self.architecture.encoder is not None and language_codes(tokenizer):
            return None, f"holds a tokenizer with {LANGUAGES}"
        return tokenizer, ""

    def checked_tokenizer(self, source: Tokenizer | str | Path) -> Tokenizer:
        """A tokenizer, or the one in a file, with the ids of the model."""
        if not isinstance(source, Tokenizer):
            source = load_tokenizer(source, trust=self.trust, ends=self.end_ids)
        if self.architecture.encoder is not None and language_codes(source):
            raise FolderError(f"{self.path}: the tokenizer has {LANGUAGES}: leave it out, and give ids in digits")
        rows = self.architecture.n_vocab
        if source.n_vocab - rows > len(out_of_range_tokens(source, rows)):
            raise FolderError(
                f"{self.path}: the tokenizer has {source.n_vocab} ids, the embedding {rows} rows: they belong to "
                "different models"
            )
        # an id without a token is never generated, so that it ends nothing
        return source.with_model_ids(self.start_id, ids_in(self.end_ids, source.n_vocab))

    def stored_chat_template(self) -> tuple[ChatTemplate | None, list[str]]:
        """The folder's chat template, an adapter's own before its base's, None if it has none that can be used; a
        sentence says what is wrong with it.
        """
        try:
            own = None if self.adapter is None else read_chat_template(self.adapter)
            return own or read_chat_template(self.path), []
        except ChatError as error:
            return None, [f"{error}; without one the model takes part in no conversation"]

    @property
    def end_ids(self) -> list[int]:
        """The ids that end a text, as the files name them, the first one of config.json first."""
        own, beside = (ids_in(named, self.architecture.n_vocab) for named in self._named("eos_token_id", "ends"))
        ids = beside or own
        return sorted(dict.fromkeys(ids), key=lambda i: i not in own[:1])

    @property
    def start_id(self) -> int | None:
        """The id that starts targets, None where the files name none. Raises FolderError if the embedding has no row
        for it.
        """
        if self.architecture.encoder is None:
            return None
        own, beside = self._named("decoder_start_token_id", "start")
        named, rows = own if beside is None else beside, self.architecture.n_vocab
        if named is not None and ids_in(named, rows) != [named]:
            raise FolderError(
                f"{self.path}: targets begin with id {str(named)[:40]} (decoder_start_token_id), for which the "
                f"embedding has no row: expected an id from 0 to {rows - 1}"
            )
        return named

    @property
    def forced_first(self) -> int | None:
        """The id that transformers makes the first of every target, None where the files name none."""
        own, beside = self._named("forced_bos_token_id", "forced_bos")
        forced = own if beside is None else beside
        return forced if type(forced) is int and self.architecture.encoder is not None else None

    def _named(self, entry: str, ours: str) -> tuple[Any, Any]:
        """What config.json says in this entry, and what generation_config.json does, which transformers follows.

        In our layout, what ids.json says in its entry `ours`.
        """
        file, name = (GENERATION, entry) if self.config else (IDS_FILE, ours)
        beside = read_object(self.path, file) if (self.path / file).exists() else {}
        return self.config.get(entry), beside.get(name)

    def ids(self) -> IdTokenizer:
        """The stand-in tokenizer that reads ids."""
        return IdTokenizer(self.architecture.n_vocab, self.end_ids, self.start_id)

    def notes_on_texts(self, tokenizer: Tokenizer, why_ids: str) -> list[str]:
        """What a user may not expect of texts that this tokenizer reads, one sentence each."""
        rows, ids, notes = self.architecture.n_vocab, tokenizer.n_vocab, []
        if why_ids:
            notes.append(
                f"{self.path} {why_ids}: texts are ids in digits, such as '1 0 2', unless tokenizer=PATH gives one"
            )
        if rows > ids:
            notes.append(
                f"{self.path}: the tokenizer has {ids:,} ids, the embedding {rows:,} rows: the rows from {ids:,} on "
                "stand for no text, and none of them is ever generated"
            )
        if names := out_of_range_tokens(tokenizer, rows):
            notes.append(
                f"{self.path}: the embedding has {rows:,} rows, and special tokens of the tokenizer have ids beyond "
                f"them, which the model cannot read: {first_five(names)}"
            )
        return notes

    def notes_on_model(self) -> list[Note]:
        """What was left out or done otherwise when the files were read, one sentence each."""
        notes = self.stored_notes()
        if self.tower is not None:
            notes.append(
                f"{self.path} holds a model for texts and images ({self.tower.model_class}): its language model is "
                "opened alone, and what reads images is left out"
            )
        if self.family is not None and self.config.get("auto_map"):
            notes.append(
                f"{self.path / 'config.json'} names code of its own (auto_map), which is not run: the model is "
                f"computed as {self.their_class} of transformers, and if that code computes something else, the result "
                "differs"
            )
        if self.family is not None and (unknown := unknown_entries(self.config, self.family)):
            notes.append(
                f"{self.path / 'config.json'} has unknown entries, which are ignored: {first_five(unknown)}; if one of "
                "them changes what the model computes, the result here differs"
            )
        if (forced := self.forced_first) is not None:
            notes.append(
                f"{self.path}: transformers begins every target with token {forced} (forced_bos_token_id), which is "
                "not done here: give that token as the prompt"
            )
        return [Note(sentence, "model") for sentence in (*notes, *self.file_notes)]

    def stored_notes(self) -> list[str]:
        """The notes that a model in our layout has beside it, a line each."""
        if self.config or not (self.path / NOTES).exists():
            return []
        notes = read_object(self.path, NOTES).get("notes")
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise FolderError(f"{self.path / NOTES}: notes = {str(notes)[:60]}: expected a list of sentences")
        return [" ".join(note.split()) for note in notes]

    def notes_to_store(self, notes: Iterable[Note], name: str) -> tuple[str, ...]:
        """The notes on the model, with its name in the place of its paths here, which mean nothing elsewhere."""
        sentences = [note.sentence for note in notes if note.affects == "model"]
        for path in filter(None, (self.path, self.adapter)):
            sentences = [sentence.replace(str(path), name) for sentence in sentences]
        return tuple(sentences)


def out_of_range_tokens(tokenizer: Tokenizer, rows: int) -> list[str]:
    """The special tokens whose ids are beyond the rows of the embedding."""
    return sorted(name for name, i in tokenizer.special.items() if i >= rows)


def ids_in(named: Any, rows: int) -> list[int]:
    """The ids in an entry that holds one or a list of them, without those that have no row of the embedding."""
    return [i for i in (named if isinstance(named, list) else [named]) if type(i) is int and 0 <= i < rows]


def language_codes(tokenizer: Tokenizer) -> list[str]:
    """The special tokens that name a language and a country, as in mBART's vocabularies: en_XX, pt_XX, zh_CN."""
    return sorted(name for name in tokenizer.special if re.fullmatch(r"[a-z]{2}_[A-Z]{2}", name))


def first_five(names: list[str]) -> str:
    """The first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
