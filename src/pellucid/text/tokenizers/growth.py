"""How much longer the steps of a tokenizer.json can make a text: each step may be harmless, and their product not."""

import base64
from typing import Any

from pellucid.text.tokenizers.base import TokenizerError
from pellucid.text.tokenizers.post_processor import pipeline_steps

#: the parts of a tokenizer.json that are pipelines, and what they call their inner steps
PIPELINES = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}
#: the most steps of a pipeline
MOST_STEPS = 64
#: how many times longer all of them may make a text; SentencePiece's table of NFKC has 18
MOST_GROWTH = 256


def check_growth(content: dict[str, Any]) -> None:
    """Raise TokenizerError for more than MOST_STEPS steps, and for steps that make a text more than MOST_GROWTH times
    as long.
    """
    for part, inner in PIPELINES.items():
        steps, growth = pipeline_steps(content.get(part), inner), 1.0
        if len(steps) > MOST_STEPS:
            raise TokenizerError(_refusal(part, f"{len(steps):,} steps, more than {MOST_STEPS}"))
        for step in steps:
            growth *= growth_of(step)
            if growth > MOST_GROWTH:
                raise TokenizerError(_refusal(part, f"steps that make a text more than {MOST_GROWTH} times as long"))


def growth_of(step: dict[str, Any]) -> float:
    """How many times longer a step can make a text of one character or more.

    The forms of Unicode are not counted: however many steps they are, they make a text at most 18 times as long once,
    where NFKC and NFKD write out U+FDFA.
    """
    kind = step.get("type")
    if kind == "Replace":
        pattern, inserted = step.get("pattern"), len(str(step.get("content") or ""))
        replaced = pattern.get("String") if isinstance(pattern, dict) else pattern
        if replaced == "":  # which is found before and behind every character
            return 2 * inserted + 1
        # an expression is one of those that are known, and matches a character at least
        return max(1.0, inserted / (len(replaced) if isinstance(replaced, str) else 1))
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend") or ""))
    if kind == "Precompiled":
        return max(1.0, _longest_entry(str(step.get("precompiled_charsmap") or "")))
    # these replace a text that the file names, and may leave empty, by a space
    empty = any(step.get(name) == "" for name in ("suffix", "word_delimiter_token"))
    return 3.0 if kind in ("BPEDecoder", "CTC") and empty else 1.0


def _longest_entry(charsmap: str) -> int:
    """The characters of the longest text by which SentencePiece's table replaces another: the table has its size in
    four bytes, a tree, and the texts, each ended by a zero.
    """
    try:
        data = base64.b64decode(charsmap)
    except ValueError:
        return 1  # the engine refuses it
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max((len(text.decode("utf-8", "replace")) for text in texts.split(b"\0")), default=1)


def _refusal(part: str, what: str) -> str:
    return (
        f"the {part} of tokenizer.json has {what}, so that a short text can fill the memory: pass --trust "
        'tokenizer (trust="tokenizer") if you trust where the file comes from'
    )
