"""What can be wrong with a request for text or for a score."""


class GenerationError(ValueError):
    """An option out of range, a prompt that cannot be read, or a network that has no next token."""


class LogitsError(GenerationError):
    """Logits that hold NaN or infinity, from which no token can be chosen."""
