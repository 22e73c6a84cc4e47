"""The prompts that the page opens with: a passage of the run's held-out text, and one that differs from it in a word.

A page about a sentence that is foreign to a model shows numbers that mean little. So the page of a run opens on text of
the same kind as the run's, which is predicted better than most of it. The text is read from the prepared tokens; where
they are gone, and for models that are no runs, the page opens on one English sentence.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from pellucid.generate.errors import GenerationError
from pellucid.generate.scoring import Score, score
from pellucid.json_files import JSONFileError, read_json_file
from pellucid.lens.trace import trace
from pellucid.look.known_answer import KNOWN_ANSWER, PROMPTS
from pellucid.look.session import AnyModel
from pellucid.predictors.predictor import Predictor
from pellucid.runs.options import RecipeError
from pellucid.runs.run_dir import cache_folder
from pellucid.text.tokenizers.base import BLANK, Tokenizer
from pellucid.text.tokens.store import Tokens, TokenSequence, TokensError, read_manifest
from pellucid.text_model import Model

#: the prompts of a model whose text is not known; masked models guess HIDDEN_WORD of the first
EXAMPLE = "When Mary and John went to the shops, John gave a drink to"
OTHER_EXAMPLE = "When Mary and John went to the shops, Mary gave a drink to"
HIDDEN_WORD = "drink"
#: the most tokens of a passage
LONGEST_PASSAGE = 48
#: how many times as many are read to find a beginning in
TEXTS_PER_PROMPT = 6
#: words that are tried in the place of one
N_CHANGED_PROMPTS = 8
#: the most texts that are compared
MOST_TEXTS = 64
#: ... and the fewest, however large the network is
FEWEST_TEXTS = 8
#: texts times weights of a comparison, so that a CPU takes seconds
WEIGHTS = 10**9
#: where a passage may begin, the best first: behind an empty line, a sentence, a line, or any white space
BEGINNINGS = (r"\n[ \t\r]*\n\s*", r"[.!?\u2026][\"'\u201d\u2019)\]]*\s+|[\u3002\uff01\uff1f]+\s*", r"\n+", r"\s+")
#: no run, files that are damaged, or tokens of another tokenizer than the model's
UNREADABLE = (LookupError, TypeError, AttributeError, OSError, JSONFileError, TokensError, RecipeError)


@dataclass(frozen=True)
class Prompts:
    """A text to open with, its source for an encoder, another of as many tokens for experiments ("": none), and the
    text's loss in nats per token; of a masked model's text that of the hidden token.
    """

    text: str
    source: str = ""
    other: str = ""
    loss: float = math.inf


def first_prompts(model: AnyModel) -> Prompts:
    """The prompts for this model: the same ones each time."""
    if model.provenance.get("folder") == KNOWN_ANSWER:
        return Prompts(PROMPTS[0][0], other=PROMPTS[1][0])
    tokens = stored_tokens(model)
    passages = [] if tokens is None else held_out_passages(model, tokens)
    if not passages:
        return usual_prompts(model)
    chosen = typical(passages)
    if is_masked(model):
        return chosen
    text = cut_before_word(model, chosen)
    return Prompts(text, chosen.source, changed_text(model, text, chosen.source, passages), chosen.loss)


def usual_prompts(model: AnyModel) -> Prompts:
    """The prompts for a model whose text is not known, cut to its context."""
    tokenizer, longest = model.tokenizer, longest_prompt(model)
    if not isinstance(model, Predictor) and tokenizer.kind == "ids":
        return Prompts(" ".join(str(i) for i in range(min(8, longest + 1, model.architecture.n_vocab))))
    if is_masked(model) and tokenizer.mask is not None:
        text = EXAMPLE.replace(HIDDEN_WORD, BLANK)
        return Prompts(text, source=text)
    rows = [tokenizer.encode(text)[:longest] for text in (EXAMPLE, OTHER_EXAMPLE)]
    text, other = map(tokenizer.decode, rows)
    differs = len(rows[0]) == len(rows[1]) and text != other
    return Prompts(text, text, other if differs and not is_masked(model) else "")


def is_masked(model: AnyModel) -> TypeGuard[Model]:
    """Whether the model guesses hidden tokens from both sides."""
    return not isinstance(model, Predictor) and model.architecture.attention.mask == "bidirectional"


def longest_prompt(model: AnyModel) -> int:
    """Tokens of a text that the model reads with what stands before and after it, and with a separator at least."""
    if isinstance(model, Predictor):
        return 64
    around = 1 if model.architecture.encoder else len(model.tokenizer.before) + len(model.tokenizer.after)
    return max(1, model.architecture.n_ctx - max(1, around))


def spread_over(n: int, model: AnyModel) -> list[int]:
    """Some of the numbers 0 ... n - 1, equally far from each other: as many as there is time for."""
    count = min(MOST_TEXTS, max(FEWEST_TEXTS, WEIGHTS // max(1, sum(p.numel() for p in model.network.parameters()))))
    return list(range(n)) if n <= count else [k * n // count for k in range(count)]


def stored_tokens(model: AnyModel) -> Tokens | None:
    """The prepared tokens of the model's run, where they are still in the cache; the run's text itself is not read."""
    with suppress(*UNREADABLE):
        data = read_json_file(Path(str(model.provenance["folder"])) / "data.json")
        for manifest in sorted(cache_folder().glob("tokens-*/manifest.json")):
            with suppress(*UNREADABLE):
                if read_manifest(manifest.parent)["parts"] == data["parts"]:
                    return Tokens.open(manifest.parent, model.tokenizer)
    return None


def held_out_passages(model: AnyModel, tokens: Tokens) -> list[Prompts]:
    """Passages from all over the held-out text that begin where a document, a paragraph, a sentence or a line does."""
    longest, passages = min(LONGEST_PASSAGE, longest_prompt(model)), {}
    for text, source in held_out_texts(model, tokens, TEXTS_PER_PROMPT * longest):
        cut = cut_text(model.tokenizer, text, longest)
        if cut is not None and cut not in passages:
            passages[cut] = with_blank(model, cut) if is_masked(model) else with_loss(model, cut, source)
    return [passage for passage in passages.values() if passage is not None]


def held_out_texts(model: AnyModel, tokens: Tokens, most: int) -> Iterator[tuple[str, str]]:
    """Texts of at most `most` tokens, with their sources for an encoder, "" where there is none."""
    tokenizer = model.tokenizer
    encoder = None if isinstance(model, Predictor) else model.architecture.encoder
    if encoder is not None and "held_out_source" in tokens.parts:
        sources, targets = tokens.part("held_out_source"), tokens.part("held_out")
        for k in spread_over(len(targets.starts), model):
            source = text_from(tokenizer, sources, int(sources.starts[k]), encoder.n_ctx)
            yield text_from(tokenizer, targets, int(targets.starts[k]), most), source
        return
    part = tokens.part("held_out")
    if part.answers is not None:  # of conversations
        answers = np.flatnonzero(np.diff(part.answers.astype(np.int8), prepend=0) == 1)
        yield from ((text_from(tokenizer, part, int(answers[k]), most), "") for k in spread_over(len(answers), model))
        return
    documents = tokens.manifest.get("held_out", {}).get("documents", [])  # file, number, first held-out character
    for spot in spread_over(len(part), model):
        k = int(np.searchsorted(part.starts, spot, "right")) - 1
        if k < len(documents) and documents[k][2] == 0 and spot - part.starts[k] < most:
            yield text_from(tokenizer, part, int(part.starts[k]), most), ""
        else:
            text = text_from(tokenizer, part, spot, most)
            matches = (re.search(beginning, text[: len(text) * 2 // 3]) for beginning in BEGINNINGS)
            yield text[next((match.end() for match in matches if match), 0) :], ""


def text_from(tokenizer: Tokenizer, part: TokenSequence, start: int, most: int) -> str:
    """The text of `most` tokens, up to the first special one, such as the separator at a document's end."""
    ids = part.read(start, min(start + most, len(part)))
    after_first = np.flatnonzero(np.isin(ids[1:], list(tokenizer.special.values())))
    return tokenizer.decode(ids[: after_first[0] + 1] if len(after_first) else ids)


def cut_text(tokenizer: Tokenizer, text: str, longest: int) -> str | None:
    """The first words of a text, `longest` tokens at most and never all of it, so that something follows.

    None where the tokens do not spell a text or leave something out.
    """
    ids = tokenizer.encode(text.lstrip("\r\n"))
    text = tokenizer.decode(ids[: min(longest, len(ids) - 1)])
    words = re.sub(r"\s+\S*$", "", text)
    text = words if 2 * len(words) >= len(text) else text.rstrip()
    ids = tokenizer.encode(text)
    return None if not 2 <= len(ids) <= longest or "\ufffd" in text or tokenizer.unknown in ids else text


def with_loss(model: AnyModel, text: str, source: str) -> Prompts:
    """The loss of a text is infinite where maximum likelihood says nothing."""
    try:
        return Prompts(text, source, loss=score_of(model, text, source).loss)
    except GenerationError:
        return Prompts(text, source)


def score_of(model: AnyModel, text: str, source: str) -> Score:
    """How probable the text is, after its source for an encoder."""
    return model.score(text) if isinstance(model, Predictor) else score(model, text, **sources(source))


def sources(source: str | list[str]) -> dict[str, Any]:
    return {"source": source} if any(source) else {}


def with_blank(model: Model, text: str) -> Prompts | None:
    """A text with a blank for the token nearest to its middle that is part of a word; None where none can be one."""
    tokenizer, ids = model.tokenizer, model.tokenizer.encode(text)
    pieces = tokenizer.pieces_of(text, ids)
    for k in sorted(range(len(ids)), key=lambda k: abs(k - len(ids) // 2)):
        blank = b"".join([*pieces[:k], BLANK.encode(), *pieces[k + 1 :]]).decode(errors="replace")
        blanked = [*ids[:k], tokenizer.mask, *ids[k + 1 :]]
        if re.search(r"\w", pieces[k].decode(errors="ignore")) and tokenizer.blanked_ids(blank) == blanked:
            traced = trace(model, blank)
            at = traced.inputs.tokens[0] == tokenizer.mask
            return Prompts(blank, loss=-float(traced.logits[0, at].log_softmax(-1)[0, ids[k]]))
    return None


def typical(passages: list[Prompts]) -> Prompts:
    """Of the longer passages the one at the lower quartile of losses: the lowest are of rulers and repeated words."""
    longest = max(len(passage.text) for passage in passages)
    ranked = sorted((one for one in passages if 2 * len(one.text) >= longest), key=lambda one: one.loss)
    return ranked[len(ranked) // 4]


def cut_before_word(model: AnyModel, passage: Prompts) -> str:
    """The text up to the word of its second half whose first token is predicted best: the page opens on the prediction
    at the end. Unchanged where no token begins a word, as where they are characters.
    """
    if math.isinf(passage.loss):
        return passage.text
    scored = score_of(model, passage.text, passage.source)
    middle = len(scored.pieces) // 2
    words = [
        k
        for k, piece in enumerate(scored.pieces)
        if k >= middle and re.match(r"\s\w", piece.decode("utf-8", "replace"))
    ]
    return b"".join(scored.pieces[: max(words, key=lambda k: scored.log_probs[k], default=None)]).decode()


def changed_text(model: AnyModel, text: str, source: str, passages: list[Prompts]) -> str:
    """The text with a word behind its first quarter exchanged for a frequent one of the passages, or a character where
    no word fits, so that it has as many tokens with the same one at its end, where the prediction changes most.

    "" for predictors, which have no experiments, and where nothing fits.
    """
    if isinstance(model, Predictor):
        return ""
    tokenizer, ids = model.tokenizer, model.tokenizer.encode(text)

    def fits(other: str) -> bool:
        own = tokenizer.encode(other)
        return len(own) == len(ids) and own[-1] == ids[-1] and tokenizer.unknown not in own

    for unit in (r"\w+", r"\S"):
        words = Counter(word for one in passages for word in re.findall(unit, one.text))
        changed = []
        for at in re.finditer(unit, text):
            others = (word for word, _ in words.most_common() if word != at[0] and alike(word, at[0]))
            texts = (text[: at.start()] + word + text[at.end() :] for word in others)
            changed += islice(filter(fits, texts), N_CHANGED_PROMPTS) if 4 * at.start() >= len(text) else ()
        if changed:
            texts = [text, *(changed[k] for k in spread_over(len(changed), model))]
            log_probs = trace(model, texts, **sources([source] * len(texts))).logits[:, -1].float().log_softmax(-1)
            return texts[1 + int(log_probs[1:, log_probs[0].argmax()].argmin())]
    return ""


def alike(word: str, other: str) -> bool:
    """Whether two words can stand in each other's place: both of letters or not, and both with capitals or without."""
    return all(is_so(word) == is_so(other) for is_so in (str.isalpha, str.isupper, str.istitle))
