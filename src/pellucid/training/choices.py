"""The choices of a recipe, each with its default: how text becomes tokens, and how weights are found."""

from dataclasses import dataclass
from typing import Literal

from pellucid.training.schedule import Shape

Word = Literal["adamw", "muon"]


@dataclass(frozen=True, kw_only=True)
class TextChoices:
    """How the text becomes tokens."""

    tokenizer: str = "bpe"  # bpe, word, char, byte, or the path of a tokenizer.json
    vocabulary: int = 0  # ids that BPE or words take; 0: chosen by the amount of text
    pattern: Literal["gpt2", "gpt4", "word-end", "none"] = "gpt2"  # how BPE divides text before it counts pairs
    sample: float = 1.0  # share of the training text that BPE or words are learned from, evenly spread
    held_out: float = 0.1  # share of the text, by bytes, that is never trained on
    inside_documents: Literal["no", "yes"] = "no"  # yes: nothing is read across the border of two documents
    # how files are found and read: see pellucid.text.files.Reading
    field: str = ""  # of JSON lines, or column of a table, that holds the text; "": text, or the only one that does
    format: Literal["auto", "plain", "html", "jsonl", "csv", "tsv", "parquet", "arrow"] = "auto"
    encoding: str = ""  # of files that are not UTF-8; "": what is not UTF-8 in them becomes U+FFFD
    include: str = ""  # patterns of file names, separated by commas: nothing else that is found is read
    exclude: str = ""  # patterns of file names, separated by commas, that are left out
    drop_duplicates: Literal["no", "yes"] = "no"  # yes: of documents with the same text the first alone is read
    licence: str = ""  # under which the text may be used, for the manifest


@dataclass(frozen=True, kw_only=True)
class TrainChoices:
    """How the weights are found. Rates are per step; losses in nats per token."""

    # length: at most one of these; epochs and tokens are turned into steps, minutes by measuring
    steps: int = 0
    tokens: int = 0
    epochs: float = 0.0
    minutes: float = 0.0

    objective: Literal["next-token", "prefix", "masked", "source-target"] = "next-token"
    mask_share: float = 0.15  # masked: share of the tokens that are hidden

    batch: int = 0  # sequences in one pass; 0: chosen
    # passes whose gradients are added up before a step; 0: chosen, and `batch` is then divided among them
    accumulate: int = 0
    optimizer: Word = "muon"
    learning_rate: float = 5e-3  # AdamW's peak
    muon_learning_rate: float = 2e-2  # Muon's peak
    beta_1: float = 0.9
    beta_2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1  # on matrices only
    ngram_weight_decay: float = 2.0  # on tables of n-grams, which would soon know the training text by heart
    clip: float = 1.0  # largest norm of the gradient; 0: not clipped
    schedule: Shape = "cosine"
    warmup: int = -1  # steps; -1: 2 % of them, at most 100
    floor: float = 0.01  # the last learning rate as a share of the peak
    init_std: float = 0.02

    seed: int = 1337
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: what this hardware multiplies faster
    compile: Literal["auto", "no", "yes"] = "auto"  # auto: where it pays for itself within the run
    # the same function computed in two ways; auto: the faster one of a forward and a backward pass, measured
    attention: Literal["auto", "fused", "written_out"] = "auto"
    recompute: Literal["no", "yes"] = "no"  # yes: activations of a block are computed again in the backward pass
    deterministic: Literal["no", "yes"] = "no"  # yes: kernels whose results do not vary between runs

    evaluate_every: int = 0  # steps; 0: ten times a run
    evaluate_tokens: int = 0  # held-out tokens read each time but the last; 0: chosen
    checkpoint_every: int = 0  # steps; 0: at every evaluation
    keep_last: int = 2  # checkpoints, besides the best
    sample_every: int = 0  # steps; 0: at every evaluation; -1: never
    sample_prompt: str = ""


@dataclass(frozen=True, kw_only=True)
class AdaptChoices:
    """Low-rank adapters, trained in place of the weights of the model that a run starts from (Hu et al. 2021)."""

    rank: int = 0  # r, columns of B and rows of A; 0: every weight is trained
    alpha: float = 0.0  # a weight becomes W + (alpha / r) B A; 0: 2 r
    modules: str = "all"  # the linear maps of the blocks that are adapted, such as query,value,down

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
