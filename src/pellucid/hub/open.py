"""Open model folders, of the hub's layout or of Pellucid's, and check them before anything is allocated."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import Architecture, count_parameters
from pellucid.hub.families import FamilyError, architecture_of, each_to_ours, family_of, unknown_entries, value_at
from pellucid.hub.files import FolderError, inside, read_object
from pellucid.hub.own_code import PREFIX, Unprefixed, architecture_in, is_own
from pellucid.hub.peft import CONFIG as ADAPTER
from pellucid.hub.peft import Changed, read_adapter
from pellucid.hub.shards import Shards
from pellucid.hub.tables import Family
from pellucid.hub.tables.entries import BOUNDS, LARGEST
from pellucid.model import Transformer
from pellucid.text.chat_template import CONFIG, JINJA, ChatError, ChatTemplate, read_chat_template
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.tokenizer import Tokenizer, TokenizerError, load_tokenizer

LONGEST_LIST, LONGEST_TOKENIZER, LONGEST_NGRAM = 1 << 14, 1 << 26, 1 << 10
#: limit on the numbers in a position table, unless the weights have more: 131,072 positions of 128 coordinates
LARGEST_TABLE = 1 << 24
#: the files that may hold a tokenizer, each row one tokenizer
TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"), ("vocab.txt",))


class LoadWarning(UserWarning):
    """A model was opened, but its files differ from what a user may expect."""


@dataclass(frozen=True)
class Folder:
    """A model folder. `config` is the hub's config.json, {} in our layout; `family` is None for our layout.

    `adapter` is the folder of low-rank changes to the model in `path`.
    """

    path: Path
    architecture: Architecture
    family: Family | None
    config: dict[str, Any]
    shards: Mapping[str, Tensor]
    trust: bool = False
    adapter: Path | None = None

    def ours(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under our name, one at a time, in the precision of the files; a tied embedding once."""
        if self.family is None:
            yield from self.shards.items()
        else:
            yield from each_to_ours(self.shards, self.config, self.family)

    def tokenizer(self, given: Tokenizer | str | Path | None = None) -> Tokenizer | None:
        """The folder's tokenizer, or `given`, a tokenizer or its file; None if there is none.

        Raises FolderError if text has ids without a row of the embedding. `notes` describes other differences.
        """
        tokenizer = given if isinstance(given, Tokenizer) else self._tokenizer(given)
        if tokenizer is None:
            return None
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

    def _tokenizer(self, given: str | Path | None) -> Tokenizer | None:
        """The tokenizer of the folder, or of the file `given`."""
        if given is not None:
            return load_tokenizer(given, trust=self.trust)
        candidates = [[inside(self.path, name) for name in names] for names in TOKENIZER_FILES]
        complete = [files for files in candidates if all(file.exists() for file in files)]
        for file in itertools.chain(*complete):
            if file.stat().st_size > LONGEST_TOKENIZER:
                raise TokenizerError(f"{file} is larger than {LONGEST_TOKENIZER:,} bytes: expected a tokenizer")
        inside(self.path, CONFIG)
        return load_tokenizer(self.path, trust=self.trust) if complete else None

    def chat_template(self) -> tuple[ChatTemplate | None, list[str]]:
        """The folder's chat template, None if it has none that can be used; a sentence says what is wrong with it."""
        for name in (CONFIG, JINJA):
            inside(self.path, name)
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
                f"{self.path} holds no tokenizer (tokenizer.json, vocab.json and merges.txt, or vocab.txt): texts are "
                "ids in digits, such as '1 0 2', unless tokenizer=PATH gives one"
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
        return notes


def beyond(tokenizer: Tokenizer, rows: int) -> list[str]:
    """The special tokens whose ids are beyond the rows of the embedding."""
    return sorted(name for name, i in tokenizer.special.items() if i >= rows)


def some(names: list[str]) -> str:
    """The first five names, and the number of the others."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def open_folder(path: Path, *, trust: bool = False) -> Folder:
    """Open the model in a folder, without allocating it.

    Raises ValueError with one line if the folder holds no model, is damaged, or needs more numbers than its files hold.
    `trust` allows pickled tensors and tokenizers with patterns that are not known to be safe. Code is never run.
    """
    family, config = None, {}
    if (path / ADAPTER).exists() and not (path / "config.json").exists():
        return _adapted(path, trust)
    if (path / "config.json").exists():
        config = read_object(path, "config.json")
        architecture = read_config(path, config)
        family = None if is_own(config) else family_of(config)
    elif (path / "architecture.json").exists():
        architecture = Architecture.from_dict(read_object(path, "architecture.json"))
    else:
        what = "holds no model" if path.exists() else "does not exist"
        raise FolderError(f"{path} {what}: expected config.json, or architecture.json, beside its weights")
    _check_sizes(path, architecture)
    shards = Shards(path, trust=trust)
    if family is not None and _is_body(config, family, shards):
        config = config | {"architectures": [family.body]}
        architecture = read_config(path, config)
    _check_table(path, architecture, shards.n_numbers)
    asked = count_parameters(architecture)["total"]
    if asked > shards.n_numbers:
        raise FolderError(f"{path}: the configuration needs {asked:,} numbers, but the files hold {shards.n_numbers:,}")
    tensors = Unprefixed(shards, path) if is_own(config) else shards
    return Folder(path, architecture, family, config, tensors, trust)


def _adapted(path: Path, trust: bool) -> Folder:
    """The base model of an adapter, with the changes applied as its tensors are read."""
    name = read_object(path, ADAPTER).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise FolderError(f"{path / ADAPTER} names no model that it changes (base_model_name_or_path)")
    base_folder = find_folder(name)
    if (base_folder / ADAPTER).exists() and not (base_folder / "config.json").exists():
        raise FolderError(f"{path} changes {name}, which is an adapter itself: merge that one first (pellucid convert)")
    if (base_folder / "recipe.json").exists():
        raise FolderError(f"{path} changes the run {name}: load the run of the adapters instead, {path.parent}")
    base = open_folder(base_folder, trust=trust)
    prefix = base.family.prefix if base.family else PREFIX
    return replace(base, shards=Changed(base.shards, read_adapter(path), prefix), adapter=path)


def copy_parameters(network: Transformer, each: Iterable[tuple[str, Tensor]]) -> Transformer:
    """Copy every parameter into the network, one at a time. Raises FolderError for unknown, missing or
    misshapen ones.
    """
    own = dict(network.named_parameters())
    with torch.no_grad():
        for name, tensor in each:
            p = own.pop(name, None)
            if p is None or p.shape != tensor.shape or not tensor.is_floating_point():
                asked = "none of this name" if p is None else f"a floating-point tensor of shape {list(p.shape)}"
                raise FolderError(f"the tensor {name} is {tensor.dtype} {list(tensor.shape)}: expected {asked}")
            p.copy_(tensor)
    if own:
        raise FolderError(f"the tensor {next(iter(own))} is missing: the architecture needs it")
    return network


def download(name: str) -> Path:
    """The folder of a model on the hub, downloaded if it is not cached. Raises FolderError without a network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.safetensors", "*.json", "merges.txt", "vocab.bpe", "vocab.txt", JINJA]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        why = str(error).splitlines()[0][:160]
        raise FolderError(
            f"{name} is not a folder here and could not be downloaded from the hub ({why}): give a folder, or check "
            "the name and the network"
        ) from None


def find_folder(name: str | Path) -> Path:
    """The folder of this name if it exists, else the hub's model of that name (`gpt2`, `OWNER/NAME`)."""
    path = Path(name)
    plain = len(path.parts) in (1, 2) and not path.is_absolute() and ".." not in path.parts
    if path.exists() or not plain or path.parts[:1] == ("runs",):
        return path
    return download(path.as_posix())


def read_config(path: Path, config: Mapping[str, Any]) -> Architecture:
    """The architecture that a folder's config.json describes, with every entry checked. Raises ValueError with one
    line.
    """
    _check_numbers(config)
    for name, why in (("auto_map", "code of its own"), ("quantization_config", "quantised weights")):
        # the code next to a model of ours computes what its configuration describes, and is not run either
        if config.get(name) and not (name == "auto_map" and is_own(config)):
            raise FolderError(f"{path / 'config.json'} asks for {why} ({name}), which Pellucid does not read")
    if is_own(config):
        return architecture_in(config)
    try:
        return architecture_of(config)
    except FamilyError as error:
        raise FamilyError(f"{path}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise FolderError(f"{path / 'config.json'} is damaged: {error!r}") from None


def _is_body(config: Mapping[str, Any], family: Family, names: Iterable[str]) -> bool:
    """Whether the weights have no readout; for a config.json that names no class."""
    of_heads = {row.theirs.split(".")[0] for row in family.rows if row.modules[0].split(".")[0] == "unembed"}
    return not config.get("architectures") and not any(name.split(".")[0] in of_heads for name in names)


def _check_numbers(value: Any, depth: int = 0) -> None:
    """Raise FolderError for unreasonable numbers, list lengths or nesting in config.json."""
    if isinstance(value, dict | list):
        if len(value) > LONGEST_LIST or depth > 16:
            raise FolderError(f"config.json holds a list of {len(value):,} entries or one nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_numbers(one, depth + 1)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise FolderError(f"config.json holds the number {str(value)[:40]}: expected {LARGEST:,} at most")


def _check_sizes(path: Path, a: Architecture) -> None:
    sizes = a.to_dict()
    for name, most in BOUNDS.items():
        if (value := value_at(sizes, name)) is not None and not value <= most:
            raise FolderError(f"{path}: {name} = {value}: expected {most:,} at most")
    if max(a.ngrams, default=0) > LONGEST_NGRAM:
        raise FolderError(f"{path}: ngrams = {max(a.ngrams)}: expected {LONGEST_NGRAM} at most")
    if a.encoder is not None:
        _check_sizes(path, a.encoder)


def _check_table(path: Path, a: Architecture, n_numbers: int) -> None:
    """Check that the position table, which no file holds, is not larger than usual or than the weights."""
    size = a.n_ctx * a.position_table_width
    if a.encoder is not None:
        _check_table(path, a.encoder, n_numbers)
    if size > max(LARGEST_TABLE, n_numbers):
        raise FolderError(f"{path}: positions of n_ctx = {a.n_ctx} would be a table of {size:,} numbers")
