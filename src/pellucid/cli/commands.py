"""The commands: arguments in, one public Python call out, and the exit code."""

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from pellucid.cli.conversion import convert
from pellucid.cli.inspect import inspect
from pellucid.cli.loading import loaded_model, transformer_of
from pellucid.cli.plan import plan, report

OK, FAILED, WRONG_INPUT, NUMERICS = 0, 1, 2, 3

Optional = float | None  # shorthand for options that are off unless given


def train(
    paths: Positional[tuple[str, ...]] = (),
    *,
    out: Path | None = None,
    resume: bool = False,
    from_: Annotated[str | None, arg(name="from")] = None,
    lora: int | None = None,
    predictor: Literal["transformer", "ngram", "neural-probabilistic", "recurrent", "image-classifier"] | None = None,
    objective: Literal["next-token", "prefix", "masked", "source-target"] | None = None,
    preset: str | None = None,
    recipe: Path | None = None,
    set_: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="FIELD=VALUE")] = (),
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
    for_: Annotated[Literal["transformers", "gguf"] | None, arg(name="for")] = None,
    explain: bool = False,
    tokenizer: str | None = None,
    vocabulary: int | None = None,
    held_out: float | None = None,
    inside_documents: bool = False,
    field: str | None = None,
    include: UseAppendAction[tuple[str, ...]] = (),
    exclude: UseAppendAction[tuple[str, ...]] = (),
    drop_duplicates: bool = False,
    licence: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    precision: Literal["auto", "float32", "bfloat16"] | None = None,
    deterministic: bool = False,
) -> int:
    """Train a model on text files and folders.

    Args:
        paths: files, folders and patterns of text (plain, HTML, JSON lines, tables, each also .gz and .zst), - for
            standard input; pairs (.tsv, .jsonl) for source-target; a .npz of images and labels for
            image-classifier; not needed with --resume.
        out: the run's folder, which must not exist yet; runs/NAME unless given.
        resume: continue the run in --out exactly where its last checkpoint left it.
        from_: start from the weights, tokenizer and architecture of this run or model.
        lora: train low-rank adapters of this rank and leave the weights of --from as they are.
        predictor: what is trained, a transformer unless given; each kind has its own fields for --set (order,
            smoothing, d_hidden, ...).
        objective: what a transformer predicts from what; masked hides tokens and finds them;
            source-target reads pairs with an encoder and writes the target.
        preset: an architecture by name: small, modern, gpt2, ...; without one, and without sizes, a run of minutes is
            sized to its text and time.
        recipe: a TOML or JSON file of fields, read after the preset and before --set.
        set_: one field of the recipe, such as model.d_model=256 or dropout=0.1; may be repeated.
        minutes: how long to train; 10 where no length is given.
        steps: length in steps (updates of the weights).
        tokens: length in tokens.
        epochs: length in passes over the text.
        for_: choose an architecture that this software opens without extra code: transformers, or gguf (llama.cpp).
        explain: say what decided the sizes that were chosen.
        tokenizer: bpe, word, char, byte, or the path of a tokenizer.json.
        vocabulary: how many ids byte-pair encoding learns.
        held_out: the share of the text that is kept for measuring.
        inside_documents: let nothing be read across the border of two documents.
        field: of JSON lines, or column of a table, that holds the text; text, or the only one, unless given.
        include: read only files of folders whose names match this pattern; may be repeated.
        exclude: leave out files of folders whose names match this pattern; may be repeated.
        drop_duplicates: of documents with the same text, read the first alone.
        licence: under which the text may be used; kept in the run's data.json.
        seed: of initial weights, order of batches and dropout.
        device: cpu, cuda, mps or auto.
        precision: of matrix products.
        deterministic: use only kernels whose results do not vary between runs.
    """
    import pellucid

    given = {
        "text.tokenizer": tokenizer,
        "text.vocabulary": vocabulary,
        "text.held_out": held_out,
        "text.inside_documents": "yes" if inside_documents else None,
        "text.field": field,
        "text.include": ",".join(include) or None,
        "text.exclude": ",".join(exclude) or None,
        "text.drop_duplicates": "yes" if drop_duplicates else None,
        "text.licence": licence,
        "train.objective": objective,
        "adapt.rank": lora,
        "train.seed": seed,
        "train.device": device,
        "train.precision": precision,
        "train.deterministic": "yes" if deterministic else None,
    }
    run = pellucid.train(
        *paths,
        out=out,
        resume=resume,
        from_model=from_,
        predictor=predictor,
        preset=preset,
        recipe=recipe,
        fields=parse_fields(set_) | {name: value for name, value in given.items() if value is not None},
        minutes=minutes,
        steps=steps,
        tokens=tokens,
        epochs=epochs,
        opens_in=for_,
        explain=explain,
        show=True,
    )
    return run.exit_code


def generate(
    model: Positional[str],
    prompt: Positional[str] = "",
    *,
    source: str | None = None,
    beams: int = 0,
    max_tokens: int = 200,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    stop: UseAppendAction[tuple[str, ...]] = (),
    seed: int | None = None,
    n: int = 1,
    stream: bool = True,
    weights: str = "auto",
    speculate: int = 0,
    mix: str = "",
    mix_weight: float | None = None,
    checkpoint: str = "best",
    device: str = "auto",
) -> int:
    """Write on from a prompt.

    Args:
        model: a run folder or a saved model.
        prompt: the text to continue; - reads it from standard input.
        source: what an encoder-decoder reads; - reads standard input. The prompt is then how the target begins.
        beams: look for the likeliest text with this many beams instead of drawing one.
        max_tokens: the most tokens to write.
        temperature: divides the logits; 0 always takes the likeliest token. 0.8 unless given, 0 with --source.
        top_k: sample from this many likeliest tokens; 0 from all.
        top_p: sample from the fewest likeliest tokens that have this much probability together.
        min_p: sample from tokens at least this share as likely as the likeliest.
        repetition_penalty: divide the logits of tokens already there by this (multiply where negative).
        frequency_penalty: subtract this from a token's logit for each time it was written.
        stop: end before this text; may be repeated.
        seed: the same seed gives the same text; drawn and shown where none is given.
        n: how many texts.
        stream: show text as it is written (with --n 1).
        weights: what the matrices are kept in while writing: auto, loaded, float32, float16, bfloat16 or int8.
        speculate: guess up to this many tokens at once from what followed the same words before; same text.
        mix: the run of an n-gram on the same tokens, whose probabilities are mixed in.
        mix_weight: the share of the model itself in such a mixture; half unless given.
        checkpoint: of a run: best (lowest held-out loss), last, or a step.
        device: cpu, cuda, mps or auto.
    """
    loaded: Any = loaded_model(model, checkpoint, device, mix, mix_weight)
    if source is not None or beams or speculate or weights != "auto" or not hasattr(loaded, "stream"):
        transformer_of(loaded, model)
    prompt = sys.stdin.read() if prompt == "-" else prompt
    source = sys.stdin.read() if source == "-" else source
    given = {"source": source, "beams": beams or None, "temperature": temperature}
    given |= {"speculate": speculate or None, "weights": None if weights == "auto" else weights}
    given["report"] = None if weights == "auto" else lambda said: print(said, file=sys.stderr)
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | {
        "max_tokens": max_tokens,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "stop": list(stop),
        "seed": seed,
    }
    results = []
    if stream and n == 1:
        pieces = iter(loaded.stream(prompt, **options))
        first = list(itertools.islice(pieces, 1))  # what is wrong with the model or the options shows here
        print(prompt, end="", flush=True)
        for piece in itertools.chain(first, pieces):
            print(piece.text, end="", flush=True)
            results += [piece.result] if piece.result else []
        print()
    else:
        results = loaded.generate_many(prompt, n=n, **options)
        print(f"\n{'-' * 40}\n".join(prompt + result.text for result in results))
    if seed is None and not beams:
        print(f"seed {results[0].seed}", file=sys.stderr)
    return OK


def score(
    model: Positional[str],
    file: Positional[str],
    *,
    prefix: str = "",
    source: str | None = None,
    per_token: bool = False,
    stride: int | None = None,
    mix: str = "",
    mix_weight: float | None = None,
    checkpoint: str = "best",
    device: str = "auto",
) -> int:
    """How probable a text is: log-probability, perplexity, bits per byte, surprisal per token.

    Args:
        model: a run folder or a saved model.
        file: the text's file, or for an image classifier a .npz; - reads standard input.
        prefix: score the text as the continuation of this.
        source: score the text as the target of this, with an encoder-decoder.
        per_token: list every token with its surprisal in bits.
        stride: tokens by which the window moves on long texts; half the context unless given.
        mix: the run of an n-gram on the same tokens, whose probabilities are mixed in.
        mix_weight: the share of the model itself in such a mixture; half unless given.
        checkpoint: of a run: best (lowest held-out loss), last, or a step.
        device: cpu, cuda, mps or auto.
    """
    from pellucid.images.run import ImageModel

    loaded = loaded_model(model, checkpoint, device, mix, mix_weight)
    if isinstance(loaded, ImageModel):
        found = loaded.score_file(file)
        print(f"images    {found.n:,}\naccuracy  {found.accuracy:.4f}\nloss      {found.loss:.4f} nats per image")
        return OK
    text = sys.stdin.read() if file == "-" else only_text(file)
    if source is not None or stride is not None:  # a predictor reads a fixed context and has no windows to move
        transformer_of(loaded, model)
    given = {"stride": stride, "source": source}
    options = {"prefix": prefix} | {name: value for name, value in given.items() if value is not None}
    found = loaded.score(text, **options)
    if per_token:
        print("bits\ttoken")
        for piece, bits in zip(found.pieces, found.surprisal_bits, strict=True):
            print(f"{bits:.3f}\t{piece.decode(errors='backslashreplace')!r}")
    print(
        f"log-probability  {found.log_prob:.4f} nats over {found.n_tokens:,} tokens, {found.n_bytes:,} bytes\n"
        f"loss             {found.loss:.4f} nats per token ({found.bits_per_token:.4f} bits)\n"
        f"perplexity       {found.perplexity:.3f} per token\n"
        f"bits per byte    {found.bits_per_byte:.4f}"
    )
    return OK


def only_text(file: str) -> str:
    """The text of a file that holds one document."""
    from pellucid.text.documents import DocumentError, read_corpus

    corpus = read_corpus(file)
    if len(corpus.documents) > 1:
        raise DocumentError(
            f"{file} holds {len(corpus.documents):,} documents, and one text is scored: name the file of one, or "
            "pipe one in"
        )
    return "".join(corpus.texts())


def fill(
    model: Positional[str], text: Positional[str], *, top: int = 5, checkpoint: str = "best", device: str = "auto"
) -> int:
    """Find what may stand at each [MASK] of a text, with a masked model.

    Args:
        model: a run folder or a saved model, trained with --objective masked.
        text: the text, with [MASK] where a token is to be found.
        top: how many tokens to show for each.
        checkpoint: of a run: best (lowest held-out loss), last, or a step.
        device: cpu, cuda, mps or auto.
    """
    import pellucid

    loaded = transformer_of(pellucid.load(model, checkpoint=checkpoint, device=device), model)
    for i, filling in enumerate(loaded.fill(text, top=top), 1):
        for token, p in zip(filling.texts, filling.probabilities, strict=True):
            print(f"{i}\t{p:.4f}\t{token!r}")
    return OK


def verify(
    model: Positional[str],
    *,
    prompt: UseAppendAction[tuple[str, ...]] = (),
    tensors: bool = False,
    as_json: Annotated[bool, arg(name="json")] = False,
    checkpoint: str = "best",
) -> int:
    """Run the laws and the NumPy reference on a model; exit code 1 if one is broken.

    Args:
        model: a run folder or a saved model.
        prompt: a text to run on; may be repeated; three of ours unless given.
        tensors: list how far every kind of tensor is from the definition.
        as_json: print the report as JSON.
        checkpoint: of a run: best (lowest held-out loss), last, or a step.
    """
    import pellucid

    report = transformer_of(pellucid.load(model, checkpoint=checkpoint, device="cpu"), model).verify(
        list(prompt) or None
    )
    if as_json:
        print(report.to_json())
    else:
        report.print(tensors=tensors)
    return report.exit_code


def parse_fields(pairs: Sequence[str]) -> dict[str, str]:
    """`["d_model=256", ...]` as a dictionary; raises ValueError for anything that is not FIELD=VALUE."""
    fields = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set {pair!r}: expected FIELD=VALUE, such as --set model.d_model=256")
        fields[name.strip()] = value.strip()
    return fields


COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "generate": generate,
    "score": score,
    "fill": fill,
    "verify": verify,
    "inspect": inspect,
    "convert": convert,
    "plan": plan,
    "report": report,
}
