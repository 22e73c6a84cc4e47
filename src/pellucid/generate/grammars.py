"""Grammars that generated text follows: which tokens may come next.

A token may come next if some text of the grammar begins with the text so far and the bytes of the token. The engine
gives all other tokens the probability 0 and divides the rest by its sum, so that a text is drawn from the model's own
distribution, conditioned on the grammar token by token. Which bytes may come next says llguidance, an extra package.

A grammar comes from a client. It is compiled first in a process that the system stops (`grammar_trial`), and what a
step may cost is limited.
"""

import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from pellucid.generate import grammar_trial
from pellucid.generate.errors import GenerationError
from pellucid.json_files import parse_json_object
from pellucid.text.tokenizers.base import Tokenizer

#: bytes of a grammar
LONGEST_GRAMMAR = 1 << 16
#: seconds of computing that compiling a grammar may take; ordinary ones take a hundredth of it
COMPILING_SECONDS = 2
#: seconds after which a process that does not even start, or answer, is ended
WAITING_SECONDS = 60.0
#: variables of this process that it needs to start
PASSED_VARIABLES = frozenset({"LD_LIBRARY_PATH", "SYSTEMROOT"})
#: compiled grammars that are kept, since clients send the same one again and again
KEPT_GRAMMARS = 8
#: every division of a text into tokens is allowed, not only the tokenizer's own one
ANY_TOKENS = '%llguidance {"no_forcing": true}'
#: JSON is written on one line, as Python's json.dumps writes it: a model that may choose writes spaces without end
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": False}


class GrammarError(GenerationError):
    """A grammar that cannot be read, is too large, or cannot be written with the tokens of a model."""


def json_grammar(schema: Mapping[str, Any]) -> str:
    """The JSON texts that are valid under this JSON Schema; compiling refuses keywords that it cannot enforce.

    They are written on one line with a space behind `:` and `,`. Keys come in the order of `properties`.
    """
    return f"start: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for the texts of `json_grammar` within a grammar."""
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_LAYOUT})}"


def regex_grammar(pattern: str) -> str:
    """The texts that this regular expression matches from their beginning to their end."""
    compiled = parse_json_object(import_llguidance().LLMatcher.grammar_from_regex(pattern), "the expression's grammar")
    return compiled["grammars"][0]["lark_grammar"]


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these texts."""
    return f"start: {' | '.join(map(json.dumps, choices))}"


@functools.lru_cache(maxsize=KEPT_GRAMMARS)
def written_grammar(text: str) -> str:
    """The texts of a grammar in the notation of Lark, or of llama.cpp (GBNF).

    Raises GrammarError for a text that is neither.
    """
    check_grammar_size(text)
    reply = try_apart({"text": text})
    if "error" in reply:
        raise GrammarError(f"the grammar cannot be read: {stated_reason(reply['error'])}")
    return reply["grammar"]


class GrammarCompiler:
    """Compiles grammars for one tokenizer.

    ends  the ids that end a text; one of them may come where a text of the grammar is complete
    """

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int]):
        llguidance, self.tokens = import_llguidance(), TokenTable(tokenizer, sorted(ends))
        self.vocabulary = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self.tokens), eos_token=sorted(ends))
        #: what compiles a grammar, or finds it among the last ones
        self.compile = functools.lru_cache(maxsize=KEPT_GRAMMARS)(self.compile_anew)

    def compile_anew(self, grammar: str) -> "Grammar":
        """The grammar, ready for use. Raises GrammarError; takes long, and holds the interpreter only at its end."""
        check_grammar_size(grammar)
        # the last statement counts
        text = f"{grammar}\n{ANY_TOKENS}\n"
        try_apart({"grammar": text, "n_vocab": len(self.tokens.tokens), "special": self.tokens.special})
        llguidance = import_llguidance()
        limits = grammar_trial.parser_limits(llguidance)
        matcher = llguidance.LLMatcher(self.vocabulary, text, log_level=0, limits=limits)
        return Grammar(matcher, len(self.tokens.tokens))


class TokenTable:
    """A tokenizer as llguidance wants it: the bytes of each token; special ones have names, and are no text."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, ends: Sequence[int]):
        names = {i: f"<|{i}|>" for i in ends} | {i: name for name, i in tokenizer.special.items()}
        self.special = {name: i for i, name in names.items()}
        texts = (b"" if i == tokenizer.unknown else tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab))
        self.tokens = [names[i].encode() if i in names else data for i, data in enumerate(texts)]
        self.special_token_ids = sorted(names)
        self.eos_token_id = ends[0]

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text, of which nothing follows where every division into tokens is allowed."""
        return []


class Grammar:
    """A compiled grammar. Raises GrammarError for one that is wrong, and where no token can begin a text of it."""

    def __init__(self, matcher: Any, n_vocab: int):
        self.matcher, self.n_vocab = matcher, n_vocab
        if error := matcher.get_error():
            raise GrammarError(f"the grammar cannot be used: {stated_reason(error)}")
        # what the first step computes is kept, for the texts too that begin here
        GrammarState(matcher, n_vocab).allowed()

    def start(self) -> "GrammarState":
        """A text that begins."""
        return GrammarState(self.matcher.deep_copy(), self.n_vocab)


class GrammarState:
    """A text that follows a grammar, and how far it is."""

    def __init__(self, matcher: Any, n_vocab: int):
        self.matcher, self.n_vocab = matcher, n_vocab

    @property
    def is_complete(self) -> bool:
        """Whether the text is one of the grammar, and nothing can follow it."""
        return self.matcher.is_stopped() and self.matcher.is_accepting()

    def allowed(self) -> Bool[Tensor, " n_vocab"]:
        """Which tokens may come next. Raises GrammarError where none may, or where the grammar is too complex."""
        bits = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        if error := self.matcher.get_error():
            if error.startswith("NoExtension"):
                raise GrammarError(
                    "no token of this model's vocabulary can come next in a text of the grammar: it asks for "
                    "characters that the vocabulary lacks, or no text fulfils it"
                )
            raise GrammarError(f"the grammar is too complex: {stated_reason(error)}")
        return torch.from_numpy(np.unpackbits(bits, count=self.n_vocab, bitorder="little").astype(bool))

    def push(self, token: int) -> None:
        """Append a token to the text. Raises GrammarError for one that may not come next."""
        if not self.matcher.consume_token(token):
            raise GrammarError(f"the grammar cannot go on: {stated_reason(self.matcher.get_error())}")


def check_grammar_size(grammar: str) -> None:
    """Raise GrammarError for a grammar that is too long."""
    if (n := len(grammar.encode())) > LONGEST_GRAMMAR:
        raise GrammarError(f"the grammar has {n:,} bytes, and at most {LONGEST_GRAMMAR:,} are read: make it smaller")


def try_apart(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a process of its own answers to a request (`grammar_trial`).

    Raises GrammarError for a grammar that takes too long, or too much memory, to read or to compile.
    """
    package = Path(import_llguidance().__file__).parent.parent
    command = [sys.executable, "-I", grammar_trial.__file__, str(package), str(COMPILING_SECONDS)]
    content, variables = (
        json.dumps(request).encode(),
        {name: environ[name] for name in PASSED_VARIABLES & environ.keys()},
    )
    try:
        done = subprocess.run(
            command, input=content, env=variables, timeout=WAITING_SECONDS, check=True, capture_output=True
        )
    except subprocess.SubprocessError:
        raise GrammarError(
            f"the grammar takes more than {COMPILING_SECONDS} s, or too much memory, to compile: make it simpler; "
            "large values of multipleOf and nested repetitions cost most"
        ) from None
    return parse_json_object(done.stdout, "the reply of the process that tries grammars")


def stated_reason(error: object) -> str:
    """What an error of llguidance says, without the state of its parser: its first line, and why, where it says so."""
    lines = str(error).partition("<state>")[0].partition("<non-verbose/>")[0].strip().splitlines() or [""]
    reason = next((line.removeprefix("error") for line in lines if line.startswith("error: ")), "")
    return (lines[0].rstrip(":") + reason)[:300]


def import_llguidance() -> Any:
    """The package llguidance. GenerationError says how to install it if it is missing."""
    try:
        return importlib.import_module("llguidance")
    except ImportError:
        raise GenerationError(
            "text in a given form needs the package llguidance: pip install 'pellucid[structured]'"
        ) from None
