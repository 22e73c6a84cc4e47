"""Writing text with a network, and scoring text under it."""

from pellucid.generate.decode import Decoding, Step, generate_ids
from pellucid.generate.errors import GenerationError
from pellucid.generate.reading import window_start
from pellucid.generate.sampling import Sampling
from pellucid.generate.scoring import Score, ScoringError, score, score_continuation, score_tokens, token_losses
from pellucid.generate.text import Generated, Piece, PromptCut, generate, stream_generate

__all__ = [
    "Decoding",
    "Generated",
    "GenerationError",
    "Piece",
    "PromptCut",
    "Sampling",
    "Score",
    "ScoringError",
    "Step",
    "generate",
    "generate_ids",
    "score",
    "score_continuation",
    "score_tokens",
    "stream_generate",
    "token_losses",
    "window_start",
]
