"""Generate text with a network, and score text under it."""

from pellucid.generate.decode import DecodeStep, Decoding, generate_ids
from pellucid.generate.errors import GenerationError
from pellucid.generate.readers import window_start
from pellucid.generate.sampling import Sampling
from pellucid.generate.scoring import Score, ScoringError, score, score_losses, score_tokens
from pellucid.generate.text import Generated, PromptCut, TextPiece, generate, stream_generate

__all__ = [
    "DecodeStep",
    "Decoding",
    "Generated",
    "GenerationError",
    "PromptCut",
    "Sampling",
    "Score",
    "ScoringError",
    "TextPiece",
    "generate",
    "generate_ids",
    "score",
    "score_losses",
    "score_tokens",
    "stream_generate",
    "window_start",
]
