"""A model folder that was opened: its architecture, its tensors, its tokenizer and its chat template."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.families import LazyStateDict, each_to_ours, unknown_entries
from pellucid.hub.files import FolderError
from pellucid.hub.mxfp4 import Mxfp4Tensors
from pellucid.hub.shards import Shards
from pellucid.hub.tables import Family
from pellucid.hub.text_towers import TextTower
from pellucid.text.chat_template import ChatError, ChatTemplate, read_chat_template
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.tokenizer import Tokenizer, load_tokenizer, tokenizer_files

#: what mBART's tokenizers have
LANGUAGES = (
    "codes of languages, such as en_XX, which stand beside sources and targets, and which Pellucid would leave out"
)


class LoadWarning(UserWarning):
    """A model was opened, but its files differ from what a user may expect."""


@dataclass(frozen=True)
class Folder:
    """A model folder. `config` is the hub's config.json, {} in our layout; `family` is None for our layout.

    `adapter` is the folder of low-rank changes to the model in `path`; `files` are the mapped files behind `shards`;
    `tower` is set where the folder's model reads images too, and this is its language model alone.
    """

    path: Path
    architecture: Architecture
    family: Family | None
    config: dict[str, Any]
    shards: Mapping[str, Tensor]
    trust: bool = False
    adapter: Path | None = None
    files: Shards | None = None
    tower: TextTower | None = None

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
        if isinstance(self.shards, Mxfp4Tensors):
            return "its experts are MXFP4, of which all experts of a layer are computed at once"
        if self.adapter is not None and self.family is not None:
            return "an adapter is added to its weights as they are read"
        return ""

    def described(
        self, tokenizer: Tokenizer | str | Path | None = None
    ) -> tuple[Tokenizer, ChatTemplate | None, list[str]]:
        """What reads its texts, `ids` where no tokenizer can; its chat template; and warnings about both and itself."""
        own = self.tokenizer(tokenizer)
        reads = self.ids() if own is None else own
        chat_template, why_none = self.chat_template()
        return reads, chat_template, [*self.notes(reads), *why_none]

    def tokenizer(self, given: Tokenizer | str | Path | None = None) -> Tokenizer | None:
        """The folder's tokenizer, or `given`, a tokenizer or its file; None if there is none that can be used.

        Raises FolderError if text has ids without a row of the embedding. `notes` describes other differences.
        """
        if given is None and not tokenizer_files(self.path):
            return None
        source = self.path if given is None else given
        tokenizer = source if isinstance(source, Tokenizer) else load_tokenizer(source, trust=self.trust)
        if self.architecture.encoder is not None and language_codes(tokenizer):
            if given is None:
                return None
            raise FolderError(f"{self.path}: the tokenizer has {LANGUAGES}: leave it out, and give ids in digits")
        rows = self.architecture.n_vocab
        if tokenizer.n_vocab - rows > len(beyond(tokenizer, rows)):
            raise FolderError(
                f"{self.path}: the tokenizer has {tokenizer.n_vocab} ids, the embedding {rows} rows: they belong to "
                "different models"
            )
        begins = self.config.get("decoder_start_token_id")
        if self.architecture.encoder is not None and begins not in (None, tokenizer.start):
            raise FolderError(
                f"{self.path}: targets begin with id {begins} in config.json, but with {tokenizer.start} in this "
                "tokenizer: they belong to different models"
            )
        return tokenizer

    def why_no_tokenizer(self) -> str:
        """What is said of a model without one."""
        if not tokenizer_files(self.path):
            return "holds no tokenizer (tokenizer.json, vocab.json and merges.txt, or vocab.txt)"
        return f"holds a tokenizer with {LANGUAGES}"

    def chat_template(self) -> tuple[ChatTemplate | None, list[str]]:
        """The folder's chat template, None if it has none that can be used; a sentence says what is wrong with it."""
        try:
            return read_chat_template(self.path), []
        except ChatError as error:
            return None, [f"{error}; without one the model takes part in no conversation"]

    def ids(self) -> IdTokenizer:
        """The stand-in tokenizer that reads ids; config.json names the id that ends a text."""
        end_ids = self.config.get("eos_token_id")
        ends = end_ids if isinstance(end_ids, list) else [end_ids]
        known = [end for end in ends if type(end) is int and 0 <= end < self.architecture.n_vocab]
        return IdTokenizer(self.architecture.n_vocab, known[0] if known else None)

    def notes(self, tokenizer: Tokenizer) -> list[str]:
        """Warnings about the model with this tokenizer, one sentence each."""
        rows, ids, notes = self.architecture.n_vocab, tokenizer.n_vocab, []
        if isinstance(tokenizer, IdTokenizer):
            notes.append(
                f"{self.path} {self.why_no_tokenizer()}: texts are ids in digits, such as '1 0 2', unless "
                "tokenizer=PATH gives one"
            )
        if self.tower is not None:
            notes.append(
                f"{self.path} holds a model for texts and images ({self.tower.model_class}): its language model is "
                "opened alone, and what reads images is left out"
            )
        if rows > ids:
            notes.append(
                f"{self.path}: the tokenizer has {ids:,} ids, the embedding {rows:,} rows: the rows from {ids:,} on "
                "stand for no text, and none of them is ever generated"
            )
        if names := beyond(tokenizer, rows):
            notes.append(
                f"{self.path}: the embedding has {rows:,} rows, and special tokens of the tokenizer have ids beyond "
                f"them, which the model cannot read: {some(names)}"
            )
        if self.family is not None and (unknown := unknown_entries(self.config, self.family)):
            notes.append(
                f"{self.path / 'config.json'} has unknown entries, which are ignored: {some(unknown)}; if one of "
                "them changes what the model computes, the result here differs"
            )
        if isinstance(self.shards, Mxfp4Tensors):
            notes.append(
                f"{self.path} holds {len(self.shards.packed)} tensors of experts as MXFP4, 4 bits a number: they are "
                "computed with in the precision of the model, rounded as they are stored"
            )
        a, longest = self.architecture, self.config.get("max_position_embeddings")
        if a.positions.scaling == "longrope" and isinstance(longest, int) and a.n_ctx < longest:
            notes.append(
                f"{self.path / 'config.json'}: the context is {a.n_ctx:,} positions, not {longest:,}, because longrope "
                "has other frequencies for longer texts; with long_factor in the place of short_factor, all texts have "
                "those"
            )
        return notes


def beyond(tokenizer: Tokenizer, rows: int) -> list[str]:
    """The special tokens whose ids are beyond the rows of the embedding."""
    return sorted(name for name, i in tokenizer.special.items() if i >= rows)


def language_codes(tokenizer: Tokenizer) -> list[str]:
    """The special tokens that name a language and a country, as in mBART's vocabularies: en_XX, pt_XX, zh_CN."""
    return sorted(name for name in tokenizer.special if re.fullmatch(r"[a-z]{2}_[A-Z]{2}", name))


def some(names: list[str]) -> str:
    """The first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
