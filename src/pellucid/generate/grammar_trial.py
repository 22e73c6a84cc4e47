"""Read and compile a grammar in a process of its own, within limits of time and memory.

llguidance bounds what a step costs, but some grammars take minutes, and nothing but the system stops them: a JSON
schema with `multipleOf` 999983 to compile, a grammar with thousands of empty lines to read. The file runs by its path,
without the rest of the package; what is wrong with a grammar that compiles in time is told by
`pellucid.generate.grammars`, which compiles it again.
"""

import json
import sys
from contextlib import suppress
from typing import Any

#: bytes of memory that the process may ask for. Linux holds the limit; macOS and Windows know no such limit
MEMORY_BYTES = 1 << 30


def parser_limits(llguidance: Any) -> Any:
    """What one step may cost: some milliseconds."""
    return llguidance.LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class TrialTokens:
    """The special tokens of a vocabulary, by their ids, and behind all of its ids the 256 bytes.

    What a grammar may name is the same as with the real one, so that no grammar fails here early and costs much there.
    """

    bos_token_id = None

    def __init__(self, n_vocab: int, special: dict[str, int]):
        self.tokens = [b""] * n_vocab + [bytes([value]) for value in range(256)]
        for name, token in special.items():
            self.tokens[token] = name.encode()
        self.special_token_ids = sorted(special.values())
        self.eos_token_id = self.special_token_ids[0]

    def __call__(self, text: bytes) -> list[int]:
        return []


def convert_grammar(request: dict[str, Any]) -> dict[str, str]:
    """The grammar in Lark's notation, of a text in that or in llama.cpp's, or what is wrong with it."""
    import llguidance

    try:
        return {"grammar": llguidance.grammar_from("grammar", request["text"])}
    except (ValueError, RecursionError) as error:
        return {"error": str(error)}


def try_grammar(request: dict[str, Any]) -> dict[str, str]:
    """Compile the grammar and compute its first mask."""
    import llguidance

    tokens = TrialTokens(request["n_vocab"], request["special"])
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens), eos_token=tokens.special_token_ids)
    llguidance.LLMatcher(tokenizer, request["grammar"], log_level=0, limits=parser_limits(llguidance)).compute_bitmask()
    return {}


def limit_trial(seconds: int) -> None:
    """Have the system end this process when it takes more time of computing or more memory."""
    with suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    # the folder of the llguidance that the parent has; python -I reads no PYTHONPATH
    sys.path.append(sys.argv[1])
    limit_trial(int(sys.argv[2]))
    asked = json.loads(sys.stdin.buffer.read())
    print(json.dumps(convert_grammar(asked) if "text" in asked else try_grammar(asked)))
