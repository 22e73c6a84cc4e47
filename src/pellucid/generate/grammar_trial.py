"""Compile a grammar in a process of its own, within limits of time and memory.

llguidance bounds what a step costs, but some grammars take minutes to compile, such as a JSON schema with `multipleOf`
999983, and nothing but the system stops them. The file runs by its path, without the rest of the package; what is wrong
with a grammar is told by `pellucid.generate.grammars`, which compiles it again.
"""

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


def try_grammar(seconds: int) -> None:
    """Compile the grammar that stands in the input and compute its first mask; the system ends what takes longer."""
    import llguidance

    grammar = sys.stdin.buffer.read().decode()
    with suppress(ImportError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    tokenizer = llguidance.LLTokenizer("byte")
    llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits(llguidance)).compute_bitmask()


if __name__ == "__main__":
    # the folder of the llguidance that the parent has; python -I reads no PYTHONPATH
    sys.path.append(sys.argv[1])
    try_grammar(int(sys.argv[2]))
