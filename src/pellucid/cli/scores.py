"""Print the measures of scored texts."""

import json
import math
from typing import Any


def _format_number(number: float) -> str:
    return f"{number:.3f}" if number < 1e6 else f"{number:.3e}"


def print_score(scored: Any, per_token: bool) -> None:
    """Print the measures of a Score or a CorpusScore on standard output."""
    from pellucid.generate.scoring import CorpusScore
    from pellucid.text.read.chunks import counted

    is_corpus = isinstance(scored, CorpusScore)
    over = f"{counted(len(scored.documents), 'document')}, " if is_corpus else ""
    if per_token:
        print("bits\ttoken")
        for piece, bits in zip(scored.pieces, scored.surprisal_bits, strict=True):
            print(f"{bits:.3f}\t{piece.decode(errors='backslashreplace')!r}")
    why = f" (not comparable: {scored.why_not_comparable})" if scored.why_not_comparable else ""
    print(
        f"log-probability  {scored.log_prob:.4f} nats over {over}{counted(scored.n_tokens, 'token')}, "
        f"{counted(scored.n_bytes, 'byte')}\n"
        f"counted          {scored.counted}\n"
        f"loss             {scored.loss:.4f} nats per token ({scored.bits_per_token:.4f} bits)\n"
        f"perplexity       {scored.perplexity:.3f} per token, {_format_number(scored.perplexity_per_word)} per word "
        f"({counted(scored.n_words, 'word')}, divided at white space)\n"
        f"bits per byte    {scored.bits_per_byte:.4f}{why}"
    )
    if scored.baselines:
        from pellucid.predictors.ngram_baselines import rows_of

        rows = [*scored.baselines, ("this model", scored.loss, scored.bits_per_byte)]
        print("\n".join(rows_of("these texts" if is_corpus else "this text", rows)))


#: what --json prints of all documents together; the names are those of Python
MEASURES = (
    *("log_prob", "n_tokens", "n_bytes", "n_words", "loss", "bits_per_token", "perplexity", "perplexity_per_word"),
    *("bits_per_byte", "counted", "why_not_comparable"),
)


def print_as_json(scored: Any) -> None:
    """Print the measures of a Score or a CorpusScore as one JSON object, with each document on a line of its own."""
    from pellucid.generate.scoring import CorpusScore
    from pellucid.predictors.ngram_baselines import Baseline

    is_corpus = isinstance(scored, CorpusScore)
    totals = {"n_documents": len(scored.documents) if is_corpus else 1}
    totals |= {name: getattr(scored, name) for name in MEASURES}
    baselines = [_as_json(Baseline(*row)._asdict()) for row in scored.baselines]
    print(f'{_as_json(totals)[:-1]}, "baselines": [{", ".join(baselines)}], "documents": [')
    if is_corpus:
        numbers = scored.log_probs, scored.token_counts, scored.byte_counts, scored.word_counts
        rows = zip(scored.documents, *(column.tolist() for column in numbers), strict=True)
    else:
        rows = iter([(scored.document, scored.log_prob, scored.n_tokens, scored.n_bytes, scored.n_words)])
    end = ""
    for row in rows:
        print(end + _as_json(_document_row(*row)), end="")
        end = ",\n"
    print("]}")


def _document_row(document: Any, log_prob: float, n_tokens: int, n_bytes: int, n_words: int) -> dict[str, Any]:
    """The measures of a document; where it is None, the text was typed."""
    from pellucid.text.one_text import document_number

    return {
        "file": document and document.origin.name,
        "row": document and document_number(document, "row"),
        "document": document and document_number(document, "document"),
        "log_prob": log_prob,
        "n_tokens": n_tokens,
        "n_bytes": n_bytes,
        "n_words": n_words,
        "loss": -log_prob / n_tokens,
        "bits_per_byte": -log_prob / math.log(2) / n_bytes,
    }


def _as_json(values: dict[str, Any]) -> str:
    """One line of JSON, in which a number that is not finite is null."""
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(finite, ensure_ascii=False, allow_nan=False)
