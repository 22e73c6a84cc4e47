"""Byte-level byte-pair encoding: trained on your text, or read from a tokenizer.json.

Training follows GPT-2: the 256 bytes, then merges of the most frequent pair inside the pre-tokens of GPT-2's pattern,
then the separator last. A pair must occur twice to be merged: merging a pair that occurs once memorizes one spot of the
text. Ties go to the pair of the smaller ids, so that training is deterministic (S0-1.1-e ... j of docs/mathematics.md).
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from pellucid.json_files import parse_json_object
from pellucid.text.tokenizers.base import (
    OPTIONS_FILE,
    SEPARATOR,
    Tokenizer,
    TokenizerError,
    check_text,
    options_in,
    settle_end,
    token_name,
    which_overlap,
)
from pellucid.text.tokenizers.growth import check_growth
from pellucid.text.tokenizers.post_processor import ids_around, pipeline_steps, template_around
from pellucid.text.tokenizers.symbols import byte_characters
from pellucid.trust import Trust, trusts

if TYPE_CHECKING:
    import tiktoken

MIN_FREQUENCY = 2
#: GPT-2's pre-tokens (encoder.py); the ByteLevel pre-tokenizer has this pattern built in
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: patterns known to run in linear time (GPT-2; GPT-4 and Llama 3; Qwen 2): other regular expressions from a file could
#: hang or abort the process
GPT4_PATTERN, QWEN_PATTERN = _WORDS + r"\p{N}{1,3}" + _REST, _WORDS + r"\p{N}" + _REST
#: the blank after a word belongs to it and marks its end, as Sennrich's </w> does, so that nothing is lost
WORD_END_PATTERN = r"\p{L}+ ?|\p{N}+ ?|[^\s\p{L}\p{N}]+ ?|\s+"
#: the patterns that training offers; none merges pairs across words too
PATTERNS = {"gpt2": GPT2_PATTERN, "gpt4": GPT4_PATTERN, "word-end": WORD_END_PATTERN, "none": None}
#: where every pre-token ends: between the two characters that the expression matches
BORDERS = {
    GPT2_PATTERN: re.compile(r"\S[ \n]"),
    GPT4_PATTERN: re.compile(r"\S "),
    QWEN_PATTERN: re.compile(r"\S "),
    WORD_END_PATTERN: re.compile(r" \S"),
}
#: o200k's, of GPT-4o and gpt-oss, whose sets of letters are not divided by a table; it runs in linear time too
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KNOWN_PATTERNS = (*BORDERS, O200K_PATTERN)
#: names of the end-of-text token, ours and those of other projects; the first that is declared is used
SEPARATORS = (SEPARATOR, "<|end_of_text|>", "</s>", "<eos>")
#: tokenizers of transformers whose vocab.json and merges.txt are those of GPT-2 in kind; None where no class is named
GPT2_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")

#: noncharacters in an order that no text repeats
UNSPOKEN = "\ufdd0" * 32 + "{}"
#: the characters that byte-level BPE writes for bytes, and the bytes
BYTE_OF = {character: value for value, character in enumerate(byte_characters())}
#: characters per call into the engine
ENGINE_CHUNK = 1 << 16
#: the most per call, if no border is found
LONGEST_CHUNK = 1 << 24
#: fewer characters than these in one call are left to the engine: tiktoken's tables take time to make
MIN_TIKTOKEN_CHARACTERS = 1 << 14
#: white space of this length is left to the engine too: at a million characters tiktoken fails
LONG_SPACE = re.compile(r"\s{100000}")
#: characters per training text; a pre-token longer than three of these is cut
TRAINING_CHUNK = 512


class BPETokenizer(Tokenizer):
    """Byte-level BPE from the text of a Hugging Face tokenizer.json.

    Raises TokenizerError for another kind of tokenizer, for ids that are not 0 ... n_vocab - 1 each once, and, unless
    `trust` is set, for patterns and normalizers outside the known ones.
    """

    kind = "bpe"

    def __init__(self, text: str, *, trust: Trust = False, notes: tuple[str, ...] = (), ends: Sequence[str | int] = ()):
        self._json, content = text, json.loads(text)
        _check_content(content, trust)
        self.separator, self.named_end = settle_end(content, SEPARATORS, ends)
        # what the engine reads: there an end that another file names is special
        self._read_json = json.dumps(content) if self.named_end else text
        self._engine = guarded(Engine.from_str, self._read_json)
        self._engine.no_truncation()
        self._engine.no_padding()
        self._engine.encode_special_tokens = True
        self.notes = notes
        self._added = {token["id"]: token for token in content.get("added_tokens", ())}
        self._names = _names_by_id(content)
        self.n_vocab = len(self._names)
        self.special = {token["content"]: i for i, token in sorted(self._added.items()) if token["special"]}
        self.before, self.after = ids_around(content, self.n_vocab)
        cuts = pipeline_steps(content.get("pre_tokenizer"), "pretokenizers")
        self.lossless = not content.get("normalizer") and not any(step.get("add_prefix_space") for step in cuts)
        self._pattern = _pattern_of(content)

    @classmethod
    def train(cls, texts: Iterable[str], n_vocab: int, pattern: str = "gpt2") -> "BPETokenizer":
        """Learn merges from `texts` until there are `n_vocab` ids, the separator included.

        pattern   how text is divided before pairs are counted: gpt2, gpt4, word-end (Sennrich et al. 2016) or none

        Training stops early when no pair occurs twice: `n_vocab` is then what was reached, and `notes` says so.
        """
        if n_vocab < 257:
            raise TokenizerError(
                f"n_vocab = {n_vocab}: byte-level BPE needs at least 257, the 256 bytes and the separator"
            )
        if pattern not in PATTERNS:
            raise TokenizerError(f"pattern = {pattern!r}: choose one of {', '.join(PATTERNS)}")
        engine = _new_engine(models.BPE(), pattern)
        trainer = trainers.BpeTrainer(
            vocab_size=n_vocab - 1,
            min_frequency=MIN_FREQUENCY,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        guarded(engine.train_from_iterator, _checked_chunks(texts, pattern), trainer)
        reached = engine.get_vocab_size() + 1
        note = (
            f"the vocabulary stopped at {reached} of the {n_vocab} requested ids: "
            f"no pair of tokens occurs {MIN_FREQUENCY} times any more"
        )
        _declare_separator(engine)
        return cls(engine.to_str(pretty=True), notes=(note,) if reached < n_vocab else ())

    @classmethod
    def from_merges(cls, vocabulary: str, merges: str, tokenizer_config: str = "{}") -> "BPETokenizer":
        """The tokenizer of the texts of GPT-2's files, encoder.json (or vocab.json) and vocab.bpe (or merges.txt).

        A tokenizer_config.json beside them names special tokens of the vocabulary (OPT's <s>, </s> and <pad>). Raises
        TokenizerError if it names the class of another tokenizer, which may divide text in another way.
        """
        ids, options = parse_json_object(vocabulary, "the vocabulary"), options_in(tokenizer_config)
        special, first = _special_beside_merges(ids, options)
        pairs = [line.split(" ") for line in merges.split("\n") if line and not line.startswith("#version")]
        if wrong := next((pair for pair in pairs if len(pair) != 2), None):
            raise TokenizerError(f"expected two tokens on each line of the merges, found {' '.join(wrong)!r}")
        # as in the tokenizers that are trained here, a separator that is last is no entry of the model itself
        is_last = SEPARATOR in special and ids.get(SEPARATOR) == len(ids) - 1
        plain = {name: i for name, i in ids.items() if not is_last or name != SEPARATOR}
        engine = _new_engine(models.BPE(plain, [(a, b) for a, b in pairs]))
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
        content = json.loads(engine.to_str())
        special_ids = {token["content"]: token["id"] for token in content["added_tokens"]}
        content["pre_tokenizer"]["add_prefix_space"] = bool(options.get("add_prefix_space"))
        if first:
            content["post_processor"] = template_around({special_ids[first]: first}, {})
        return cls(json.dumps(content, ensure_ascii=False, indent=2), ends=special)

    def to_json(self) -> str:
        return self._json

    def _with_special(self, *names: str) -> "BPETokenizer":
        engine = Engine.from_str(self._json)
        engine.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        # accepted patterns are not checked again
        return BPETokenizer(engine.to_str(pretty=True), trust=True, notes=self.notes, ends=(self.separator,))

    @property
    def merges(self) -> list[tuple[str, str]]:
        """The merges in order of rank, in byte-level characters."""
        pairs = json.loads(self._json)["model"]["merges"]
        return [(a, b) for a, b in (pair.split(" ") if isinstance(pair, str) else pair for pair in pairs)]

    def words(self, text: str) -> list[str]:
        """The pre-tokens of a text, inside which pairs are merged, in byte-level characters."""
        check_text(text)
        normalizer = self._engine.normalizer
        normalized = text if normalizer is None else guarded(normalizer.normalize_str, text)
        return [word for word, _ in guarded(self._engine.pre_tokenizer.pre_tokenize_str, normalized)]

    def _encode(self, text: str) -> list[int]:
        return self._encode_batch([text])[0].tolist()

    def _encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        is_long = sum(map(len, texts)) >= MIN_TIKTOKEN_CHARACTERS
        if is_long and self._tiktoken is not None and not any(map(LONG_SPACE.search, texts)):
            ids = [guarded(self._tiktoken.encode_ordinary, text) for text in texts]
        else:
            ids = self._ids(texts)
        return [np.array(one, dtype=np.int64) for one in ids]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text by the engine."""
        encoded = guarded(self._engine.encode_batch_fast, texts, add_special_tokens=False)
        return [one.ids for one in encoded]

    @cached_property
    def _tiktoken(self) -> "tiktoken.Encoding | None":
        """tiktoken's encoder, two to four times as fast as the engine, where it gives the same ids; else None.

        It merges any two neighbours that make a token, in order of the token's id, and the engine the pairs of a list.
        """
        if self._pattern is None or not guarded(ids_are_ranks, json.loads(self._read_json)):
            return None
        import tiktoken

        ranks = {self._bytes[i]: i for i in range(self.n_vocab) if i not in self._added}
        return tiktoken.Encoding(self.hash, pat_str=self._pattern, mergeable_ranks=ranks, special_tokens={})

    def encode_parts_batch(
        self, rows: Sequence[Sequence[tuple[str | int, bool]]]
    ) -> list[tuple[list[int], list[bool]]]:
        # special tokens that take no white space beside them only divide the text
        if self._pattern is not None and not self._takes_space:
            return super().encode_parts_batch(rows)
        return self._marking.encode_batch(rows)

    @cached_property
    def _takes_space(self) -> bool:
        return any(token.get("lstrip") or token.get("rstrip") for token in self._added.values())

    @cached_property
    def _marking(self) -> "MarkingEngine":
        return MarkingEngine(self._read_json)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        return self._marking.spans(text)

    def chunks(self, pieces: Iterable[str]) -> Iterator[str]:
        # only known patterns have known borders
        return cut_at_borders(pieces, border=BORDERS[self._pattern]) if self._pattern else iter(["".join(pieces)])

    @cached_property
    def _bytes(self) -> list[bytes]:
        table = []
        for i, name in enumerate(self._names):
            if i in self._added:
                table.append(b"" if self._added[i]["special"] else name.encode())
            else:
                table.append(bytes(BYTE_OF[character] for character in name))
        return table

    def _table(self) -> Sequence[bytes]:
        return self._bytes


class MarkingEngine:
    """The engine of a tokenizer.json whose special tokens have names that no text can spell.

    It reads texts with special ids among them at once, as other projects do, so that their rules for the white space
    beside a special token hold. The unknown token is none of these.
    """

    def __init__(self, text: str):
        self._name = f"\ufdd0{secrets.token_hex(16)} {{}}\ufdd1"
        content = unreachable(json.loads(text), self._name)
        renamed = [token for token in content.get("added_tokens") or [] if token["content"][0] == self._name[0]]
        plain = [token for token in content.get("added_tokens") or [] if not token["special"]]
        content["added_tokens"] = sorted(
            [*plain, *(token | {"normalized": False} for token in renamed)], key=lambda token: token["id"]
        )
        content["post_processor"] = None  # it would trim the white space from the characters of a token
        self._engine = guarded(Engine.from_str, json.dumps(content))
        self._engine.no_truncation()
        self._engine.no_padding()

    def encode_batch(self, rows: Sequence[Sequence[tuple[str | int, bool]]]) -> list[tuple[list[int], list[bool]]]:
        """See `Tokenizer.encode_parts_batch`."""
        texts = [[one if isinstance(one, str) else self._name.format(one) for one, _ in parts] for parts in rows]
        for text in (joined := ["".join(row) for row in texts]):
            check_text(text)
        marked = []
        for encoding, row, parts in zip(self._batch(joined), texts, rows, strict=True):
            starts, ends = zip(*encoding.offsets, strict=True) if encoding.ids else ((), ())
            overlap = which_overlap(starts, ends, [len(text) for text in row], [mark for _, mark in parts])
            marked.append((encoding.ids, overlap))
        return marked

    def _batch(self, texts: list[str]) -> list[Any]:
        if len(texts) == 1:  # without the engine's threads
            return [guarded(self._engine.encode, texts[0], add_special_tokens=False)]
        return guarded(self._engine.encode_batch, texts, add_special_tokens=False)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The (start, end) characters of a text that each of its ids was made from, a blank before a word among
        them, which the file's own post_processor may leave out.
        """
        return guarded(self._engine.encode, text, add_special_tokens=False).offsets


def ids_are_ranks(content: dict[str, Any]) -> bool:
    """Whether merging by the ids of the results is merging by the list of pairs.

    It is if the pairs make all tokens but the bytes, in order of id, each of tokens of lower ids, and if the bytes of
    each token become that token. Where no token reaches across the borders of these bytes, they are divided as they are
    when they stand alone, so that one pair alone makes the token anywhere.
    """
    model, names = content["model"], {*byte_characters()}
    added = {token["content"] for token in content.get("added_tokens") or []}
    if model.get("ignore_merges") and not added.isdisjoint(model["vocab"]):
        return False  # a text that spells an added token has its id
    vocab = {name: i for name, i in model["vocab"].items() if name not in added}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if any(model.get(option) for option in ("continuing_subword_prefix", "end_of_word_suffix")) or any(
        not {a, b, a + b} <= vocab.keys() for a, b in pairs
    ):
        return False
    results = [vocab[a + b] for a, b in pairs]
    in_order = all(max(vocab[a], vocab[b]) < i for (a, b), i in zip(pairs, results, strict=True))
    if (
        not in_order
        or results != sorted(results)
        or {*results} != {i for name, i in vocab.items() if name not in names}
    ):
        return False
    engine = models.BPE(vocab, [(a, b) for a, b in pairs])
    return all([token.id for token in engine.tokenize(name)] == [i] for name, i in vocab.items())


def unreachable(content: dict[str, Any], name: str = UNSPOKEN) -> dict[str, Any]:
    """A tokenizer.json with its special tokens, except the unknown one, renamed so that no text can spell them.

    Their names are entries of the vocabulary, which a text could otherwise produce. No merge makes the new names.
    """
    changed = json.loads(json.dumps(content))
    model, added = changed["model"], changed.get("added_tokens") or []
    special = {t["content"]: name.format(t["id"]) for t in added if t["special"]}
    special.pop(str(model.get("unk_token")), None)
    for entry in added:
        entry["content"] = special.get(entry["content"], entry["content"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {special.get(token, token): i for token, i in model["vocab"].items()}
    else:
        model["vocab"] = [
            [token if i == model.get("unk_id") else special.get(token, token), score]
            for i, (token, score) in enumerate(model["vocab"])
        ]
    return changed


def cut_at_borders(
    pieces: Iterable[str],
    size: int = ENGINE_CHUNK,
    longest: int = LONGEST_CHUNK,
    border: re.Pattern[str] = BORDERS[GPT2_PATTERN],
) -> Iterator[str]:
    """Cut text into chunks of at least `size` characters that end where a pattern ends a pre-token.

    No alternative of GPT-2's pattern continues from a non-space to a space, and only spaces look ahead, so a cut
    between the two changes no pre-token; `border` matches the two characters. If `longest` characters have no border,
    the cut is forced.
    """
    waiting = ""
    for piece in pieces:
        waiting += piece
        start = 0
        while len(waiting) - start > size:
            match = border.search(waiting, start + size - 1, start + longest)
            if match is None and len(waiting) - start < longest:
                break
            cut = match.start() + 1 if match else start + longest
            yield waiting[start:cut]
            start = cut
        waiting = waiting[start:]
    if waiting:
        yield waiting


def _checked_chunks(texts: Iterable[str], pattern: str) -> Iterator[str]:
    border = BORDERS[PATTERNS[pattern] or GPT2_PATTERN]
    for text in texts:
        check_text(text)
        # the engine's training time is quadratic in the longest pre-token: a megabyte of one letter takes minutes
        yield from cut_at_borders([text], size=TRAINING_CHUNK, longest=3 * TRAINING_CHUNK, border=border)


def _new_engine(model: models.Model, pattern: str = "gpt2") -> Engine:
    engine, expression = Engine(model), PATTERNS[pattern]
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")]
    if expression is not None and pattern != "gpt2":
        steps = [pre_tokenizers.Split(Regex(expression), "isolated"), *steps]
    engine.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    engine.decoder = decoders.ByteLevel()
    return engine


def _declare_separator(engine: Engine) -> None:
    engine.add_special_tokens([AddedToken(SEPARATOR, special=True, normalized=False)])


def guarded(call: Any, *args: Any, **options: Any) -> Any:
    """Call the engine and turn its failures, panics included, into TokenizerError."""
    try:
        return call(*args, **options)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, ValueError, OSError):
        raise
    except BaseException as error:
        raise TokenizerError(f"the tokenizer engine failed: {error}") from error


def _check_content(content: Any, trust: Trust) -> None:
    """Raise TokenizerError for anything but byte-level BPE, and for unknown regular expressions and normalizers."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise TokenizerError(
            f"tokenizer.json holds a model of type {kind!r}: expected byte-level BPE, characters or bytes"
        )
    steps = pipeline_steps(content.get("pre_tokenizer"), "pretokenizers")
    if not any(step.get("type") == "ByteLevel" for step in steps) or model.get("byte_fallback"):
        raise TokenizerError("tokenizer.json holds a BPE that is not byte-level: expected a ByteLevel pre-tokenizer")
    if absent := [character for character in byte_characters() if character not in model["vocab"]]:
        raise TokenizerError(f"the vocabulary lacks {len(absent)} of the 256 bytes: text that has them would be lost")
    if model.get("dropout"):
        raise TokenizerError(
            "the model drops merges at random (dropout), so the same text would get other ids each time: set "
            "dropout to null"
        )
    if trusts(trust, "tokenizer"):
        return
    for step in steps:
        pattern = (step.get("pattern") or {}).get("Regex")
        if step.get("type") not in ("ByteLevel", "Split", "Digits") or (pattern and pattern not in KNOWN_PATTERNS):
            raise TokenizerError(
                f"tokenizer.json splits text by {pattern or step.get('type')!r}, which is not known to be safe: "
                'pass --trust tokenizer (trust="tokenizer") if you trust where the file comes from'
            )
    for step in pipeline_steps(content.get("normalizer"), "normalizers"):
        if step.get("type") != "NFC":
            raise TokenizerError(
                f"tokenizer.json changes text by {step.get('type')!r}, which is not known to be safe: "
                'pass --trust tokenizer (trust="tokenizer") if you trust where the file comes from'
            )
    check_growth(content)


def _special_beside_merges(ids: Mapping[str, int], options: Mapping[str, Any]) -> tuple[list[str], str]:
    """The special tokens of a vocabulary of GPT-2's kind, what ends a text first; and what precedes every text, or "".

    `options` is the content of the tokenizer_config.json.
    """
    instead = (
        "give the folder with a tokenizer.json, which AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of "
        "transformers writes"
    )
    if (kind := options.get("tokenizer_class")) not in GPT2_CLASSES:
        raise TokenizerError(
            f"{OPTIONS_FILE} names the class {str(kind)[:60]!r}, and a vocabulary and merges alone are read as "
            f"GPT-2's, which may divide text in another way: {instead}"
        )
    named = [token_name(options.get(f"{role}_token")) for role in ("eos", "bos", "pad", "unk")]
    end, first = named[0] or SEPARATOR, ""
    if options.get("add_bos_token"):
        first = named[1] or SEPARATOR
    for name in filter(None, (end, first)):
        if name not in ids and not name == end == SEPARATOR:
            raise TokenizerError(f"{OPTIONS_FILE} names {name[:60]!r}, which the vocabulary does not hold: {instead}")
    others = [name for name in (first, *named) if name in ids and name != SEPARATOR]
    return list(dict.fromkeys([end, *others])), first


def _pattern_of(content: dict) -> str | None:
    """The known pattern that alone divides text into pre-tokens; None if there is none or text is changed."""
    # added tokens that are not special match in text, across borders too
    if content.get("normalizer") or not all(t["special"] for t in content.get("added_tokens", ())):
        return None
    *before, last = pipeline_steps(content.get("pre_tokenizer"), "pretokenizers")
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not before:
        return GPT2_PATTERN if last.get("use_regex", True) else None
    isolated = len(before) == 1 and before[0].get("behavior") == "Isolated" and not before[0].get("invert")
    plain = isolated and not last.get("use_regex", True)
    expression = (before[0].get("pattern") or {}).get("Regex", "")
    return expression if plain and expression in BORDERS else None


def _names_by_id(content: dict) -> list[str]:
    """Token names in order of id. Raises TokenizerError unless ids are 0, 1, 2, ... each once."""
    names: dict[int, str] = {}
    entries = [*content["model"]["vocab"].items(), *((t["content"], t["id"]) for t in content.get("added_tokens", ()))]
    for name, i in entries:
        if names.setdefault(i, name) != name:
            raise TokenizerError(f"tokenizer.json gives id {i} to both {names[i]!r} and {name!r}")
    missing = next((i for i in range(len(names)) if i not in names), None)
    if missing is not None:
        raise TokenizerError(f"tokenizer.json has {len(names)} tokens but none with id {missing}: ids must run from 0")
    return [names[i] for i in range(len(names))]
