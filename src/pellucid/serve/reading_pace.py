"""How many tokens of a prompt are read between two decoding steps."""

import statistics
from collections import deque

#: tokens of the shortest piece: a shorter one takes no less time, because each reads all weights once
SHORTEST_PIECE = 16
#: the last decoding steps, whose median counts: one step that was interrupted changes nothing
RECENT_STEPS = 5


class ReadingPace:
    """The length of the next piece of a prompt, from how long pieces and decoding steps took.

    A piece is to take as long as a step, so that the others wait for two steps' time where they would wait for one. A
    longer piece reads more tokens in a second, so that a length that follows from the last piece's tokens per second
    comes closer to the one that takes as long as a step, and does not overshoot.

    longest   tokens of a piece, at most
    """

    def __init__(self, longest: int):
        self.longest = longest
        self.step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        #: of the last piece; 0 before the first one
        self.tokens_per_second = 0.0

    @property
    def length(self) -> int:
        """Tokens of the next piece."""
        length = statistics.median(self.step_seconds) * self.tokens_per_second if self.step_seconds else 0
        return min(self.longest, max(SHORTEST_PIECE, round(length)))

    def note_step(self, seconds: float) -> None:
        """A decoding step took so long."""
        self.step_seconds.append(seconds)

    def note_piece(self, n_tokens: int, seconds: float) -> None:
        """A piece took so long."""
        if n_tokens < SHORTEST_PIECE or not seconds:
            return
        rate = n_tokens / seconds
        # a prompt's last piece is shorter than it may be, and says nothing against longer ones
        self.tokens_per_second = rate if n_tokens >= self.length else max(rate, self.tokens_per_second)
