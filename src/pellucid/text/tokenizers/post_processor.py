"""What a tokenizer of another project puts before and after a text: the `post_processor` of its tokenizer.json."""

from collections.abc import Mapping
from typing import Any

from pellucid.text.tokenizers.base import TokenizerError

#: the ids before a text, and those after it
PrefixAndSuffix = tuple[tuple[int, ...], tuple[int, ...]]
#: ids beside a text, at most; the tokenizers in use put one or two there
MOST_ADDED_IDS = 64


def pipeline_steps(part: Any, inner: str) -> list[dict]:
    """The steps of a pre-tokenizer, normalizer, decoder or post-processor as a list."""
    if not part:
        return []
    return (
        [step for one in part[inner] for step in pipeline_steps(one, inner)]
        if part.get("type") == "Sequence"
        else [part]
    )


def ids_around(content: Mapping[str, Any], n_vocab: int) -> PrefixAndSuffix:
    """The ids before and after a single text; none where the steps do something else than to add ids around it.

    Raises TokenizerError for ids outside the vocabulary.
    """
    # ByteLevel only moves the borders of tokens in the text
    steps = [s for s in pipeline_steps(content.get("post_processor"), "processors") if s.get("type") != "ByteLevel"]
    before, after = _ids_added_by(steps[0]) if len(steps) == 1 else ((), ())
    if (n := len(before) + len(after)) > MOST_ADDED_IDS:
        raise TokenizerError(
            f"the post_processor of tokenizer.json puts {n:,} ids beside a text: expected {MOST_ADDED_IDS} at most"
        )
    if outside := [i for i in (*before, *after) if type(i) is not int or not 0 <= i < n_vocab]:
        raise TokenizerError(
            f"the post_processor of tokenizer.json puts {str(outside[0])[:40]} beside a text: expected an id from 0 to "
            f"{n_vocab - 1}"
        )
    return before, after


def _ids_added_by(step: Mapping[str, Any]) -> PrefixAndSuffix:
    """The ids that one step adds."""
    if step.get("type") in ("BertProcessing", "RobertaProcessing"):
        return (step["cls"][1],), (step["sep"][1],)
    if step.get("type") != "TemplateProcessing":
        return (), ()
    sides: list[list[int]] = [[]]
    for piece in step["single"]:
        if "Sequence" in piece:
            sides.append([])
        else:
            sides[-1] += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    # a template may also leave the text out, or repeat it
    return (tuple(sides[0]), tuple(sides[1])) if len(sides) == 2 else ((), ())


def template_around(before: Mapping[int, str], after: Mapping[int, str]) -> dict[str, Any]:
    """The post_processor that puts these special tokens, their names by id, before and after a single text."""
    first, last = ([{"SpecialToken": {"id": name, "type_id": 0}} for name in side.values()] for side in (before, after))
    return {
        "type": "TemplateProcessing",
        "single": [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [token], "tokens": [name]} for token, name in {**before, **after}.items()
        },
    }
