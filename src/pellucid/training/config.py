"""The choices of a recipe, each with its default: how text becomes tokens, and how weights are found."""

from dataclasses import dataclass
from typing import Literal

from pellucid.training.schedule import ScheduleName

Word = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How the text becomes tokens."""

    #: bpe, word, char, byte, or the path of a tokenizer.json
    tokenizer: str = "bpe"
    #: how many tokens bpe or word learns; 0: chosen by the amount of text
    vocabulary: int = 0
    #: how bpe divides text before it counts pairs
    pattern: Literal["gpt2", "gpt4", "word-end", "none"] = "gpt2"
    #: share of the training text that bpe or word learns from, evenly spread
    sample: float = 1.0
    #: share of the text, by bytes, that is never trained on; 0 with held_out_files
    held_out: float = 0.1
    #: files and folders that are held out in place of a share of the text
    held_out_files: tuple[str, ...] = ()
    #: how a share is held out: stratified (whole documents and ends of documents that resemble the rest), documents
    #: (whole documents of any size), tail (the end of every document); files goes with held_out_files
    split: Literal["stratified", "documents", "tail", "files"] = "stratified"
    #: yes: tokens attend only to tokens of the same document
    inside_documents: Literal["no", "yes"] = "no"
    #: the field of JSON lines, or the column of a table, that holds the text; empty: text, or the only one that does
    field: str = ""
    #: how every file is read; auto: by its name
    format: Literal["auto", "plain", "html", "jsonl", "csv", "tsv", "parquet", "arrow"] = "auto"
    #: the encoding of files that are not UTF-8, such as latin-1; empty: bytes that are not UTF-8 become U+FFFD
    encoding: str = ""
    #: patterns of file names, separated by commas; files in folders that match none of them are not read
    include: str = ""
    #: patterns of file names, separated by commas; files in folders that match one of them are not read
    exclude: str = ""
    #: yes: only the first of several documents with the same text is read
    drop_duplicates: Literal["no", "yes"] = "no"
    #: yes: files that cannot be read are left out, and listed
    skip_bad: Literal["no", "yes"] = "no"
    #: the licence of the text, noted in the run's data.json
    licence: str = ""


#: what a recipe says that was written before there were other rules of holding text out
EARLIER = {"split": "documents"}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """How the weights are found. Rates are per step; losses in nats per token."""

    #: length in updates of the weights; give at most one of steps, tokens, epochs and minutes
    steps: int = 0
    #: length in tokens that are trained on
    tokens: int = 0
    #: length in passes over the training text
    epochs: float = 0.0
    #: length in minutes; the number of steps follows from measuring one
    minutes: float = 0.0

    #: what is predicted: the next token, the text after a prefix, tokens that are masked, or a target from its source
    objective: Literal["next-token", "prefix", "masked", "source-target"] = "next-token"
    #: share of the tokens that are hidden where the objective is masked
    mask_share: float = 0.15

    #: sequences in one pass; 0: chosen
    batch: int = 0
    #: passes whose gradients are added up before a step; 0: chosen, and batch is then divided among them
    accumulate: int = 0
    #: adamw for every weight, or muon for the matrices inside the blocks and AdamW for the others
    optimizer: Word = "muon"
    #: the largest learning rate of AdamW
    learning_rate: float = 5e-3
    #: the largest learning rate of Muon
    muon_learning_rate: float = 2e-2
    #: decay of AdamW's average of the gradients
    beta_1: float = 0.9
    #: decay of AdamW's average of the squared gradients
    beta_2: float = 0.99
    #: added to AdamW's divisor
    eps: float = 1e-8
    #: decoupled weight decay, of matrices only
    weight_decay: float = 0.1
    #: weight decay of the tables of n-grams, which would soon know the training text by heart
    ngram_weight_decay: float = 2.0
    #: the largest norm of the gradient; 0: the gradient is not clipped
    clip: float = 1.0
    #: how the learning rate falls after the warm-up: as a cosine, linearly over the last fifth (wsd), or not at all
    schedule: ScheduleName = "cosine"
    #: steps over which the learning rate rises from 0; -1: 2 % of the steps, at most 100
    warmup: int = -1
    #: the last learning rate as a share of the largest
    floor: float = 0.01
    #: standard deviation of the first weights
    init_std: float = 0.02

    #: where the first weights, the order of the batches and the dropout are drawn from
    seed: int = 1337
    #: auto, cpu, cuda or mps; auto takes a GPU where there is one
    device: str = "auto"
    #: the precision of matrix products; auto: what this machine multiplies faster
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: whether torch.compile is used; auto: where it saves more time than it takes
    compile: Literal["auto", "no", "yes"] = "auto"
    #: two ways to compute the same function; auto: the faster one, measured by a forward and a backward pass
    attention: Literal["auto", "fused", "written_out"] = "auto"
    #: yes: the activations of a block are computed again in the backward pass, which saves memory and takes time
    recompute: Literal["no", "yes"] = "no"
    #: yes: only algorithms that give the same result in every run
    deterministic: Literal["no", "yes"] = "no"

    #: steps between measurements of the held-out loss; 0: chosen by the length of the run
    evaluate_every: int = 0
    #: held-out tokens that are read each time but the last, which reads all; 0: chosen
    evaluate_tokens: int = 0
    #: steps between checkpoints; 0: at every measurement of the held-out loss
    checkpoint_every: int = 0
    #: how many checkpoints are kept besides the best
    keep_last: int = 2
    #: steps between samples of generated text; 0: at every measurement of the held-out loss; -1: never
    sample_every: int = 0
    #: the prompt of the samples
    sample_prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    """Low-rank adapters, trained in place of the weights of the model that a run starts from (Hu et al. 2021)."""

    #: r, the columns of B and the rows of A; 0: every weight is trained
    rank: int = 0
    #: a weight becomes W + (alpha / r) B A; 0 stands for 2 r
    alpha: float = 0.0
    #: the linear maps of the blocks that are adapted, such as query,value,down
    modules: str = "all"

    @property
    def scaled_by(self) -> float:
        """alpha, chosen where it is open."""
        return self.alpha or 2.0 * self.rank


@dataclass(frozen=True)
class Base:
    """The model that a run started from; a run of adapters needs its weights as long as it is used.

    `checkpoint` is the step of a run, "" of a folder; `sha256` is of the weights as float32.
    """

    path: str
    checkpoint: str
    sha256: str


#: what a recipe begins with where training goes on from weights that were trained before: a tenth of the rates
CONTINUING = {"train.learning_rate": 5e-4, "train.muon_learning_rate": 2e-3}
#: and where adapters are trained in their place
ADAPTING = {"train.optimizer": "adamw", "train.learning_rate": 2e-3, "train.weight_decay": 0.0}
