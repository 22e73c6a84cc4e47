"""Errors of generation and scoring."""


class GenerationError(ValueError):
    """An option is out of range, a prompt cannot be read, or the network does not predict a next token."""


class LogitsError(GenerationError):
    """The logits hold NaN or infinity, so no token can be chosen."""
