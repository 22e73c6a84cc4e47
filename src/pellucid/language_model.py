"""The one object a user holds: a network, its tokenizer, and where both come from."""

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import torch

from pellucid.destination import check_destination
from pellucid.edits import Edit
from pellucid.extras import require_extra
from pellucid.features.attribution_graph import attribution_graph
from pellucid.generate.fill import fill
from pellucid.generate.replies import stream_reply
from pellucid.generate.scoring import CorpusScore, Score, ScoringOptions, score
from pellucid.generate.text import Generated, GenerateOptions, TextPiece, check_single, generate, stream_generate
from pellucid.hub.folder import LoadWarning
from pellucid.hub.open import find_folder, open_folder, read_network
from pellucid.hub.write import write_notes
from pellucid.lens.analysis.ablation import ablate
from pellucid.lens.analysis.heads import detect_heads
from pellucid.lens.analysis.patching import patch
from pellucid.lens.analysis.path_patching import path_patch
from pellucid.lens.analysis.steering import direction, mean_activation, probe
from pellucid.lens.generation_trace import generate_traced, taps_of
from pellucid.lens.trace import trace
from pellucid.lens.weights.circuits import Circuits
from pellucid.lens.weights.embeddings import Embeddings
from pellucid.lens.weights.folding import weights_view
from pellucid.lens.weights.head_weights import Head
from pellucid.lens.weights.weight_edits import with_edits
from pellucid.look.inspector import Inspector
from pellucid.look.known_answer import KNOWN_ANSWER, known_network, known_tokenizer
from pellucid.model.weights import check_finite, save_weights
from pellucid.model_names import check_checkpoint, check_revision
from pellucid.option_values import suggest_keywords
from pellucid.predictors.on_text import Progress, ScoreTextOptions, count_on_run, run_of, score_given
from pellucid.predictors.transformer_mixture import mixed_with
from pellucid.runs.checkpoint import facts_on_step, steps_of
from pellucid.runs.device import resolve_device
from pellucid.sources.of_run import OCCURRENCES, TextPart, load_sources
from pellucid.sources.verbatim import TextSources
from pellucid.starting_model import base_weights
from pellucid.tensor_names import AttentionPart
from pellucid.text.chat_template import read_chat_template, write_chat_template
from pellucid.text.ids import IdTokenizer
from pellucid.text.read.find import ReadOptions
from pellucid.text.tokenizers.base import write_model_ids
from pellucid.text.tokenizers.tokenizer import Tokenizer
from pellucid.text_model import Model
from pellucid.training.load import as_trained, load_run, read_recipe
from pellucid.trust import Trust, check_trust
from pellucid.verify.report import Report


class ModelError(ValueError):
    """A folder that holds no model."""


class ScoreOptions(ScoringOptions, ScoreTextOptions, total=False):
    """How a transformer scores a text or a file; `LanguageModel.score` describes them."""


class LanguageModel(Model):
    """A transformer with its tokenizer: generate text, score text, look inside, save.

    `pellucid.load` opens one. The network is a torch module and is used as it is: no conversion, no rewritten weights.
    `provenance` holds the folder that the weights come from, the step of a run, and what it was opened with: `trust`,
    `allow_nan`, and the path of a `tokenizer`, None for one that was no path; `notes` say what was left out or done
    otherwise when its files were read, which `save` keeps. `chat_template` turns a conversation into what the model
    reads, for a model that was trained on conversations.
    """

    @suggest_keywords((*GenerateOptions.__annotations__, "n"))  # n has an answer of its own
    def generate(
        self, prompt: str = "", *, edits: Sequence[Edit] = (), **options: Unpack[GenerateOptions]
    ) -> Generated:
        """Generate one text from the prompt; `pellucid.generate.text.stream_generate` describes the options.

        An encoder-decoder reads `source="..."` and generates the target; `beams=4` searches for the likeliest text.
        `edits` (`pellucid.edits`) are made at every step; their positions count from the first token that is read, as
        in `trace(prompt)`.
        """
        check_single(prompt, options)
        return generate(self, prompt, taps=taps_of(self.network, edits), **options)[0]

    @suggest_keywords(GenerateOptions.__annotations__)
    def generate_many(
        self,
        prompts: str | Sequence[str] = "",
        *,
        n: int = 1,
        edits: Sequence[Edit] = (),
        **options: Unpack[GenerateOptions],
    ) -> list[Generated]:
        """Generate n texts from every prompt in one batch, those of the first prompt first; `source` may be a list."""
        return generate(self, prompts, n=n, taps=taps_of(self.network, edits), **options)

    @suggest_keywords(GenerateOptions.__annotations__)
    def stream(
        self,
        prompt: str | Sequence[str] = "",
        *,
        n: int = 1,
        edits: Sequence[Edit] = (),
        **options: Unpack[GenerateOptions],
    ) -> Iterator[TextPiece]:
        """Generate text piece by piece; the pieces' texts joined are the text that `generate` returns."""
        return stream_generate(self, prompt, n=n, taps=taps_of(self.network, edits), **options)

    reply = stream_reply
    generate_traced = generate_traced

    def with_edits(self, edits: Sequence[Edit]) -> "LanguageModel":
        """A model whose weights do what the edits do (`pellucid.lens.weights.weight_edits`), a copy."""
        changed = with_edits(self.network, edits)
        provenance = {**self.provenance, "edits": [e.to_dict() for e in edits]}
        return LanguageModel(changed, self.tokenizer, provenance, self.chat_template)

    @overload
    def score(self, text: str, **options: Unpack[ScoreOptions]) -> Score: ...
    @overload
    def score(self, text: os.PathLike, **options: Unpack[ScoreOptions]) -> Score | CorpusScore: ...
    @suggest_keywords(ScoringOptions.__annotations__)
    def score(
        self,
        text: str | os.PathLike,
        *,
        reading: ReadOptions | None = None,
        baselines: bool = False,
        progress: Progress | None = None,
        **options: Unpack[ScoringOptions],
    ) -> Score | CorpusScore:
        """How probable a text is, by itself or as the continuation of `prefix`; `pellucid.generate.scoring.score`
        describes the options.

        text       a string; or the pathlib.Path of a file or folder, which is read as training reads it: of several
                   documents, each is scored by itself, and the result is a CorpusScore
        reading    how such a file is read: its field, its format, its encoding
        baselines  also score n-grams that are counted on the training text of the run that this model is from
        progress   progress(stage, done, total) is called during long steps
        """

        count = partial(count_on_run, self.provenance, self.tokenizer, progress) if baselines else None
        return score_given(lambda text: score(self, text, **options), text, reading, progress, count)

    def sources(
        self,
        text: str | Generated,
        *,
        part: TextPart = "train",
        fewest_tokens: int | None = None,
        occurrences: int = OCCURRENCES,
        progress: Progress | None = None,
    ) -> TextSources:
        """The passages of a text that stand verbatim in the text of the run that this model is from, with their places.

        text           a string; or what the model generated, whose prompt is context alone
        part           train, or held-out: what is measured on and never trained on
        fewest_tokens  the tokens that a passage has at least; None lists those that are longer than what new text
                       shares with this part by chance (`pellucid.sources.of_run.RunSources.find`)
        occurrences    how many places of each passage
        progress       progress(stage, done, total) is called during long steps

        The first call builds an index in the cache folder. Many questions are asked of `pellucid.load_sources(run)`,
        which is opened once. Raises RecipeError for a model that is from no run or whose text has changed.
        """
        sources = load_sources(
            run_of(self.provenance), part, progress=progress, trust=self.provenance.get("trust", False)
        )
        query, after = (str(text), len(text.prompt)) if isinstance(text, Generated) else (text, 0)
        return sources.find(query, fewest_tokens=fewest_tokens, occurrences=occurrences, after=after)

    mixed_with = mixed_with
    fill = fill

    # Looking inside -------------------------------------------------------------------------

    trace = trace
    patch = patch
    path_patch = path_patch
    ablate = ablate
    heads = detect_heads
    direction = direction
    mean_activation = mean_activation
    probe = probe
    attribution_graph = attribution_graph

    def look(self, text: str = "", *, port: int = 0) -> Inspector:
        """Start the web inspector beside this program; a notebook shows it, and `.url` opens in a browser.

        text  the prompt that the page begins with
        port  where it listens on 127.0.0.1; 0 takes a free port

        `.close()` stops it.
        """
        # a web server's packages are loaded by those who want one
        require_extra("look")
        from pellucid.look.server import start_inspector
        from pellucid.look.session import Session

        folder = self.provenance.get("folder")
        run = Path(folder) if folder and (Path(folder) / "recipe.json").exists() else None

        def at_step(step: int) -> LanguageModel:
            device = str(self.network.embed.token.weight.device)
            allowed = {name: self.provenance.get(name, False) for name in ("trust", "allow_nan")}
            return load(str(run), checkpoint=str(step), device=device, **allowed)

        name = Path(folder).name if folder else "model"
        session = Session(self, name=name, load=at_step if run else None, steps=steps_of(run) if run else ())
        return start_inspector(session, port, text)

    def circuits(self, *, part: AttentionPart = "attn", fold_norms: bool = False, centre: bool = False) -> Circuits:
        """Heads and neurons as matrices, from the weights alone (`pellucid.lens.weights.circuits.Circuits`)."""
        return Circuits(self, part=part, fold_norms=fold_norms, centre=centre)

    def head(self, layer: int, head: int) -> Head:
        """One attention head as matrices, on raw weights (`pellucid.lens.weights.head_weights.Head`)."""
        return self.circuits()[layer, head]

    def embeddings(self, of: Literal["embed", "unembed", "positions"] = "embed") -> Embeddings:
        """A table of embeddings as a cloud of points (`pellucid.lens.weights.embeddings.Embeddings`)."""
        return Embeddings(self, of)

    weights = weights_view

    def verify(self, prompts: list[str] | None = None, *, progress: Callable[[str], None] | None = None) -> Report:
        """The laws and the reference, run on this model (`pellucid.verify.verify`)."""
        # the reference and its comparison are loaded by those who want one
        from pellucid.verify.examine import verify

        return verify(self, prompts, progress)

    def save(self, folder: str | Path, *, edits: Sequence[Edit] = ()) -> Path:
        """Write architecture.json, model.safetensors, and the tokenizer, or the ids that end a text, into a new folder.

        `edits` are written into the weights, where they are a change of weights; EditError, and nothing written, else.
        """
        network, folder = with_edits(self.network, edits) if edits else self.network, Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ModelError(f"{folder} is not empty: choose a new folder")
        check_destination(folder)
        folder.mkdir(parents=True, exist_ok=True)
        architecture = json.dumps(network.architecture.to_dict(), indent=1) + "\n"
        (folder / "architecture.json").write_text(architecture, encoding="utf-8", newline="\n")
        if isinstance(self.tokenizer, IdTokenizer):
            write_model_ids(folder, self.tokenizer)
        else:
            self.tokenizer.save(folder)
            if self.chat_template is not None:
                write_chat_template(folder, self.chat_template, self.tokenizer.named_end)
        write_notes(folder, self.provenance.get("notes", ()))
        save_weights(network, folder / "model.safetensors")
        return folder


@suggest_keywords()
def load(
    model: str | Path,
    *,
    checkpoint: str = "best",
    revision: str | None = None,
    device: str = "auto",
    dtype: torch.dtype = torch.float32,
    trust: Trust = False,
    tokenizer: Tokenizer | str | Path | None = None,
    allow_nan: bool = False,
) -> LanguageModel:
    """Open a transformer: a run, a saved model, a Hugging Face folder or a name on its hub, or a GGUF file.

    A name that is no folder here (`gpt2`, `OWNER/NAME`) is fetched from the hub. Runs of other kinds are opened by
    `load_predictor`. Raises ValueError when there is no model, it is damaged, or it is of another kind.

    checkpoint  of a run: best (lowest held-out loss), last, or the number of a step; what is no run has none
    revision    of a name on the hub: a branch, a tag or a commit, such as step1000 of EleutherAI/pythia-70m; None for
                its main one
    device      auto, cpu, cuda, ...
    dtype       of the weights; a run is trained and saved in float32
    trust       open pickled weights, and tokenizers whose patterns are not known to be safe; a run that started from
                such a model needs it too. No code is ever run
    tokenizer   a tokenizer, or its file or folder, in place of the model's own. Where a folder has none and none is
                given, texts are ids in digits ("17 4 250")
    allow_nan   open a model although its weights hold NaN or infinity, to look into it

    A run that started from no other model never saw what the tokenizer of another project puts before and after a
    text, so it is read without that.
    """
    check_trust(trust)
    check_revision(folder := Path(model), revision)
    check_checkpoint(folder, checkpoint)
    allowed: dict[str, Any] = {name: x for name, x in (("trust", trust), ("allow_nan", allow_nan)) if x}
    torch_device = resolve_device(device)
    if (folder / "recipe.json").exists():
        if tokenizer is not None:
            raise ModelError(
                f"{folder} is a run, which has the tokenizer that it was trained with: leave tokenizer out"
            )
        weights_of_base = partial(base_weights, trust=trust)
        network, own, step = load_run(folder, checkpoint, torch_device, weights_of_base, dtype, trust=trust)
        check_finite(network, f"{folder}, step {step}", allow_nan)
        own = as_trained(own, read_recipe(folder))
        provenance = {"folder": str(folder), **facts_on_step(folder, checkpoint, step), **allowed}
        return LanguageModel(network, own, provenance, read_chat_template(folder))
    opened = open_folder(folder := find_folder(model, revision, trust=trust), trust=trust)
    rules = opened.text_rules(tokenizer)
    for note in rules.notes:
        warnings.warn(note.sentence, LoadWarning, stacklevel=2)
    network = read_network(opened.architecture, opened.ours(), dtype, torch_device)
    check_finite(network, str(folder), allow_nan)
    provenance = {"folder": str(folder), **allowed} | ({} if revision is None else {"revision": revision})
    if notes := opened.notes_to_store(rules.notes, Path(model).name):
        provenance["notes"] = notes
    if tokenizer is not None:
        provenance["tokenizer"] = None if isinstance(tokenizer, Tokenizer) else str(tokenizer)
    return LanguageModel(network, rules.tokenizer, provenance, rules.chat_template)


def known_answer() -> LanguageModel:
    """A small model whose weights are written by hand, to see every analysis find what is known to be there.

    `pellucid.look.known_answer.PLANTED` says which head and which neuron does what, and `PROMPTS` has texts to try.
    """
    return LanguageModel(known_network(), known_tokenizer(), {"folder": KNOWN_ANSWER})
