"""The options of a language model's recipe besides those of every run: its text, its adapters, its base model."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from pellucid.option_values import Open, Options
from pellucid.runs.options import RecipeError, refuser
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.tokenizer import LEARNED, LEAST_VOCABULARY


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    """How the text becomes tokens."""

    tokenizer: str = "bpe"
    """bpe, word, char, byte, or the path of a tokenizer.json"""
    vocabulary: Open[int] = None
    """number of tokens that bpe or word learns; auto: chosen by the amount of text"""
    pattern: Literal["gpt2", "gpt4", "word-end", "none"] = "gpt2"
    """how bpe divides text before it counts pairs"""
    sample: float = 1.0
    """share of the training text that bpe or word learns from, evenly spread"""
    held_out: float = 0.1
    """share of the text, by bytes, that is never trained on; 0 with held_out_files"""
    held_out_files: tuple[str, ...] = ()
    """files and folders that are held out in place of a share of the text"""
    split: Literal["stratified", "documents", "tail", "files"] = "stratified"
    """how a share is held out: stratified (whole documents and ends of documents that resemble the rest), documents
    (whole documents of any size), tail (the end of every document); files goes with held_out_files
    """
    inside_documents: Literal["no", "yes"] = "no"
    """yes: tokens attend only to tokens of the same document"""
    field: str = ""
    """the field of JSON, or column of a table, that holds the text; empty: text, or the only one that does; for files
    of several kinds PATTERN=FIELD, separated by commas
    """
    format: Literal[
        "auto", "plain", "markdown", "html", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "epub", "docx"
    ] = "auto"
    """how every file is read; auto: by its name"""
    encoding: str = ""
    """the encoding of files that are not UTF-8, such as latin-1; empty: bytes that are not UTF-8 become U+FFFD"""
    include: str = ""
    """patterns of file names, separated by commas; files in folders that match none of them are not read"""
    exclude: str = ""
    """patterns of file names, separated by commas; files in folders that match one of them are not read"""
    html: Literal["all", "main"] = "all"
    """the part of HTML pages that is read: all that a reader sees, or the main text without menus and banners"""
    split_at: str = ""
    """the characters at which a document ends and another begins, such as <|endoftext|>; empty: nowhere"""
    drop_duplicates: Literal["no", "yes"] = "no"
    """yes: only the first of several documents with the same text is read"""
    skip_bad: Literal["no", "yes"] = "no"
    """yes: files that cannot be read are left out, and listed"""
    chat_template: str = ""
    """how conversations become text: chatml, or the path of a Jinja template; empty: as the model of --from has it,
    chatml where it has no template
    """
    licence: str = ""
    """the licence of the text, noted in the run's data.json"""

    def check(self) -> None:
        """Raise RecipeError for values that no text can be read with."""
        refuse_unless = refuser(self, "text")
        files = bool(self.held_out_files)
        refuse_unless(
            0 < self.held_out < 1 or files, "held_out", "a share between 0 and 1, such as 0.1, or files of your own"
        )
        refuse_unless(all(self.held_out_files), "held_out_files", "files and folders")
        by_share = "stratified, documents or tail; files stands for the files of --held-out (text.held_out_files) alone"
        refuse_unless(files or self.split != "files", "split", by_share)
        refuse_unless(not files or self.split == "files", "split", "files, as text.held_out_files are given")
        is_open = self.vocabulary is None
        learned = self.tokenizer in LEARNED or is_open
        refuse_unless(learned, "vocabulary", f"auto where text.tokenizer = {self.tokenizer}, which does not learn one")
        least, which = LEAST_VOCABULARY.get(self.tokenizer, (1, "a number of ids"))
        expected = f"at least {least} where text.tokenizer = {self.tokenizer}: {which}"
        refuse_unless(is_open or self.vocabulary >= least, "vocabulary", expected)
        ReadOptions(format=self.format, encoding=self.encoding, field=self.field)
        refuse_unless(0 < self.sample <= 1, "sample", "a share above 0, and 1 for all of the text")
        sampled = self.tokenizer in LEARNED or self.sample == 1
        refuse_unless(sampled, "sample", f"1 where text.tokenizer = {self.tokenizer}, which does not learn from text")
        divided = self.tokenizer == "bpe" or self.pattern == "gpt2"
        refuse_unless(divided, "pattern", f"gpt2 where text.tokenizer = {self.tokenizer}, which does not use one")


#: more columns than any linear map has
MOST_RANK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(Options):
    """Low-rank adapters, trained in place of the weights of the model that a run starts from (Hu et al. 2021)."""

    rank: int = 0
    """r, the columns of B and the rows of A; 0: every weight is trained"""
    alpha: Open[float] = None
    """a weight becomes W + (alpha / r) B A; auto: 2 r"""
    modules: str = "all"
    """the linear maps of the blocks that are adapted, such as query,value,down"""

    def check(self) -> None:
        """Raise RecipeError for a rank that no linear map has."""
        refuser(self, "adapt")(0 <= self.rank <= MOST_RANK, "rank", "a number of columns, or 0 for no adapters")

    @property
    def scaled_by(self) -> float:
        """alpha, or 2 r where it is open."""
        return 2.0 * self.rank if self.alpha is None else self.alpha


@dataclass(frozen=True, kw_only=True)
class ParallelOptions(Options):
    """How several processes divide the work; the product of three numbers is how many there are."""

    replicate: Open[int] = None
    """copies of the network, each of which reads its share of the rows"""
    shard: Open[int] = None
    """processes that read their share of the rows each, and hold a share of every weight (FSDP)"""
    tensor: Open[int] = None
    """processes that compute a share of the heads, of the MLP and of the vocabulary each, for the same rows"""
    gather: Literal["float32", "bfloat16"] = "float32"
    """the precision in which processes that shard send each other a block's weights; bfloat16 halves what is sent, and
    held-out losses are then computed in bfloat16 too
    """

    @property
    def sizes(self) -> dict[str, Open[int]]:
        """The three numbers by name."""
        return {"replicate": self.replicate, "shard": self.shard, "tensor": self.tensor}

    @property
    def n_processes(self) -> int:
        """The product of the numbers that are set."""
        return math.prod(size or 1 for size in self.sizes.values())

    def check(self) -> None:
        """Raise RecipeError for numbers below 1."""
        refuse_unless = refuser(self, "parallel")
        for name, size in self.sizes.items():
            refuse_unless(size is None or size >= 1, name, "a number of processes, or auto")

    def divided(self, n: int) -> "ParallelOptions":
        """The layout of `n` processes: what is open is replicate, or else shard, or else tensor.

        Raises RecipeError where the product of the three cannot be n, or one process would send weights.
        """
        layout, asked = self.sizes, self.n_processes
        is_open = [name for name, value in layout.items() if not value]
        if n % asked or (not is_open and n != asked):
            named = " x ".join(f"parallel.{name} = {value}" for name, value in layout.items() if value)
            raise RecipeError(
                f"{named} asks for {asked} processes, and there {'is 1' if n == 1 else f'are {n}'}: start as many with "
                f"--processes {asked}, or leave the layout open"
            )
        if n == 1:
            only = "float32 in a run of one process, which sends its weights to no other"
            refuser(self, "parallel")(self.gather == "float32", "gather", only)
            return self
        ones = dict.fromkeys(is_open, 1)
        return replace(self, **ones | ({is_open[0]: n // asked} if is_open else {}))


@dataclass(frozen=True)
class Base:
    """The model that a run started from. A run of adapters needs its weights whenever it is loaded.

    `checkpoint` is the step of a run, "" for a folder; `sha256` is the hash of the weights as float32; `revision` is
    the branch, tag or commit of a name on the hub, "" for its main one.
    """

    path: str
    checkpoint: str
    sha256: str
    revision: str = ""


#: the defaults of a run that starts from trained weights: a tenth of the learning rates
CONTINUING = {
    "train.learning_rate": 5e-4,
    "train.muon_learning_rate": 2e-3,
    "train.weight_decay": 0.1,
}
#: the defaults of a run of adapters
ADAPTING = {"train.optimizer": "adamw", "train.learning_rate": 2e-3, "train.weight_decay": 0.0}
