"""Tokenizers of other projects that are not byte-level BPE, run by their own engine and exported as they are.

These are SentencePiece's BPE with byte fallback (Llama 2, Gemma), WordPiece (BERT), Unigram (T5), and words. The ids,
and the text that `decode` returns, are the engine's. Three things differ from Pellucid's own tokenizers: a normalizer
may change the text first (lower case, one space for two), so that it does not come back; a token's bytes are those that
it has inside a text, with the space before it; and the file is never changed, except that a model that was trained
without what it puts beside a text is exported without that (`Tokenizer.bare`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Engine

from pellucid.text.tokenizers.base import SEPARATOR, Tokenizer, TokenizerError, options_in, settle_end
from pellucid.text.tokenizers.bpe import BYTE_OF, KNOWN_PATTERNS, MarkingEngine, guarded, unreachable
from pellucid.text.tokenizers.growth import check_growth
from pellucid.text.tokenizers.post_processor import ids_around, pipeline_steps
from pellucid.trust import Trust, trusts

MODELS = {"BPE": "sentencepiece", "Unigram": "unigram", "WordPiece": "wordpiece", "WordLevel": "word"}
#: names of the end-of-text token; the first that is declared is used
END_TOKENS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>", "<end_of_turn>", "[SEP]", "<sep>")
#: steps that run in linear time and do not lengthen text, and allowed replacements
NORMALIZERS = (
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Lowercase",
    "StripAccents",
    "BertNormalizer",
    "Precompiled",
    "Strip",
    "Nmt",
)
CUTS = ("Metaspace", "BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "ByteLevel")
JOINS = ("Metaspace", "WordPiece", "BPEDecoder", "ByteFallback", "Fuse", "Strip", "ByteLevel", "CTC")
SPACES = ("  ", " {2,}", "\\s+", r"\s+")
#: the largest number of ids
MOST_IDS = 1 << 22
#: characters of the longest text that a step may insert
LONGEST_INSERT = 4
SPACE = "\u2581"
#: the roles of BERT's special tokens
BERT_SPECIAL = ("pad", "unk", "cls", "sep", "mask")


class ExternalTokenizer(Tokenizer):
    """A tokenizer from the text of a Hugging Face tokenizer.json, whatever its model; `kind` names the model.

    Raises TokenizerError for steps and patterns that are not known to be safe (unless `trust` is set), for a tokenizer
    without a separator, and for ids out of bounds.
    """

    lossless = False

    def __init__(self, text: str, *, trust: Trust = False, ends: Sequence[str | int] = ()):
        self._json, content = text, json.loads(text)
        if not trusts(trust, "tokenizer"):
            check_steps(content)
        self.separator, self.named_end = settle_end(content, END_TOKENS, ends)
        # what the engine reads: there an end that another file names is special
        self._read_json = json.dumps(content) if self.named_end else text
        model = content["model"]
        self.kind, self._model = MODELS[model["type"]], model
        readable = self._read_json if model["type"] == "BPE" else json.dumps(unreachable(content))
        self._engine = guarded(Engine.from_str, readable)
        self._engine.no_truncation()
        self._engine.no_padding()
        self._engine.encode_special_tokens = True
        added = content.get("added_tokens") or []
        self._names = _token_names(model, added)
        self.n_vocab = len(self._names)
        self.special = {token["content"]: token["id"] for token in added if token["special"]}
        self.before, self.after = ids_around(content, self.n_vocab)
        cuts, joins = (
            pipeline_steps(content.get(part), inner)
            for part, inner in (("pre_tokenizer", "pretokenizers"), ("decoder", "decoders"))
        )
        self._in_byte_characters = any(step.get("type") == "ByteLevel" for step in joins)
        suffixes = [step.get("suffix") for step in joins if step.get("type") == "BPEDecoder"]
        #: what names end with where a word ends, such as </w>
        self._word_end = next(iter(suffixes), None) or model.get("end_of_word_suffix") or ""
        marks_spaces = any(step.get("type") == "Metaspace" for step in cuts) or any(SPACE in n for n in self._names)
        #: without a decoder the engine puts a space between all tokens
        self._spaced = not joins and not marks_spaces
        named = model.get("unk_token")
        unknown = model.get("unk_id") if named is None else self._names.index(named) if named in self._names else None
        self.unknown = None if model.get("byte_fallback") else unknown
        if unknown is None and not model.get("byte_fallback"):
            raise TokenizerError(
                "this tokenizer has neither byte fallback nor an unknown token, so it cannot encode every text"
            )

    def to_json(self) -> str:
        return self._json

    def _with_special(self, *names: str) -> "ExternalTokenizer":
        engine = Engine.from_str(self._json)
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        return ExternalTokenizer(engine.to_str(pretty=True), trust=True, ends=(self.separator,))

    def _encode(self, text: str) -> list[int]:
        return guarded(self._engine.encode, text, add_special_tokens=False).ids

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        encoded = guarded(self._engine.encode_batch_fast, texts, add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.int64) for one in encoded]

    def encode_parts_batch(
        self, rows: Sequence[Sequence[tuple[str | int, bool]]]
    ) -> list[tuple[list[int], list[bool]]]:
        return self._marking.encode_batch(rows)

    @cached_property
    def _marking(self) -> MarkingEngine:
        return MarkingEngine(self._read_json)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return guarded(self._engine.encode, text, add_special_tokens=False).offsets

    def chunks(self, pieces: Iterable[str]) -> Iterator[str]:
        # these tokenizers have no known borders at which text may be cut
        return iter(["".join(pieces)])

    def decode(self, ids: Iterable[int], *, errors: str = "replace") -> str:
        """The engine's text of `ids`, which may lack a leading space, without special ids."""
        plain_ids = [int(i) for i in ids if int(i) not in self._special_ids]
        if wrong := next((i for i in plain_ids if not 0 <= i < self.n_vocab), None):
            raise TokenizerError(f"token {wrong} is outside this vocabulary: ids run from 0 to {self.n_vocab - 1}")
        return guarded(self._engine.decode, plain_ids, skip_special_tokens=False)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return self.decode(ids).encode()

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.special.values())

    @cached_property
    def _bytes(self) -> list[bytes]:
        no_text = self._special_ids
        return [b"" if i in no_text or not name else self._bytes_of(name) for i, name in enumerate(self._names)]

    def _bytes_of(self, name: str) -> bytes:
        """The bytes that a token adds inside a text, as the engine's decoder has them."""
        if self._model.get("byte_fallback") and (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name)):
            return bytes([int(byte[1], 16)])
        if self._in_byte_characters and all(character in BYTE_OF for character in name):
            return bytes(BYTE_OF[character] for character in name)
        if self.kind == "wordpiece":
            prefix = self._model.get("continuing_subword_prefix") or "##"
            return (name.removeprefix(prefix) if name.startswith(prefix) else f" {name}").encode()
        if self._word_end and name.endswith(self._word_end):
            return f"{name.removesuffix(self._word_end)} ".encode()
        return (f" {name}" if self._spaced else name.replace(SPACE, " ")).encode()

    def _table(self) -> Sequence[bytes]:
        return self._bytes


def read_external(
    text: str, content: dict[str, Any], *, trust: Trust = False, ends: Sequence[str | int] = ()
) -> Tokenizer | None:
    """The tokenizer of a tokenizer.json with this text and content, None if it is byte-level BPE (`BPETokenizer`)."""
    model = content.get("model") or {}
    if model.get("type") not in MODELS:
        return None
    cuts = {step.get("type") for step in pipeline_steps(content.get("pre_tokenizer"), "pretokenizers")}
    if (
        model["type"] == "BPE"
        and not model.get("byte_fallback")
        and ("ByteLevel" in cuts or not model.get("unk_token"))
    ):
        return None
    if model.get("dropout"):
        return None  # BPETokenizer refuses it with the reason
    return ExternalTokenizer(text, trust=trust, ends=ends)


def wordpiece_json(vocab_txt: str, tokenizer_config: str = "{}") -> str:
    """The tokenizer.json for the texts of a vocab.txt, one token on each line, and of a tokenizer_config.json.

    Raises TokenizerError if a token occurs twice or the unknown token is missing.
    """
    tokens, options = vocab_txt.replace("\r\n", "\n").removesuffix("\n").split("\n"), options_in(tokenizer_config)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocabulary[token] != i)
        raise TokenizerError(f"the token {twice[:60]!r} stands on two lines: expected every token once")
    special = {role: str(options.get(f"{role}_token") or f"[{role.upper()}]") for role in BERT_SPECIAL}
    if special["unk"] not in vocabulary:
        raise TokenizerError(f"the unknown token {special['unk'][:60]!r} is missing: expected a WordPiece vocabulary")
    lower, strip = options.get("do_lower_case", True), options.get("strip_accents")
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": vocabulary[name], "content": name, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for name in special.values()
            if name in vocabulary
        ],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": options.get("tokenize_chinese_chars", True) is not False,
            "strip_accents": strip if isinstance(strip, bool) else None,
            "lowercase": lower is not False,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": special["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    beside = {role: special[role] for role in ("sep", "cls") if special[role] in vocabulary}
    if len(beside) == 2:
        ends = {role: [name, vocabulary[name]] for role, name in beside.items()}
        content["post_processor"] = {"type": "BertProcessing"} | ends
    return json.dumps(content, ensure_ascii=False)


def check_steps(content: dict[str, Any]) -> None:
    """Raise TokenizerError for unknown steps, unsafe patterns, long insertions, and steps that multiply a text."""
    parts = (("normalizer", "normalizers", NORMALIZERS), ("pre_tokenizer", "pretokenizers", CUTS))
    for part, inner, known in (*parts, ("decoder", "decoders", JOINS)):
        for step in pipeline_steps(content.get(part), inner):
            kind, pattern = step.get("type"), step.get("pattern") or {}
            inserted = str(step.get("content") or step.get("prepend") or "")
            expression = pattern.get("Regex") if isinstance(pattern, dict) else pattern
            harmless = expression is None or expression in (*KNOWN_PATTERNS, *SPACES)
            if kind not in (*known, "Replace", "Prepend", "Split") or not harmless or len(inserted) > LONGEST_INSERT:
                said = str(expression or inserted)[:60]
                raise TokenizerError(
                    f"tokenizer.json has the {part} {kind!r} with {said!r}, which is not known to be safe: pass "
                    '--trust tokenizer (trust="tokenizer") if you trust where the file comes from'
                )
    check_growth(content)


def _token_names(model: dict[str, Any], added: list[dict[str, Any]]) -> list[str]:
    """Token names by id; an id without a token is called ""."""
    vocabulary = model["vocab"]
    entries = {i: name for name, i in vocabulary.items()} if isinstance(vocabulary, dict) else {}
    entries = entries or {i: entry[0] for i, entry in enumerate(vocabulary)}
    entries |= {token["id"]: token["content"] for token in added}
    n = max(entries, default=-1) + 1
    if n > MOST_IDS or min(entries, default=0) < 0:
        raise TokenizerError(f"tokenizer.json has ids from {min(entries)} to {n - 1}: expected 0 to {MOST_IDS - 1}")
    return [entries.get(i, "") for i in range(n)]
