"""How many tokens of prompts are read in a round in which others wait for their next token."""

from collections import deque

#: tokens that are read in a round at least: fewer take hardly less time, because each round reads all weights
FEWEST_PROMPT_TOKENS = 16
#: a round with a piece may take as long as so many without
ROUND_STEPS = 1.75
#: the last rounds without a piece, the shortest of which counts: one that was interrupted changes nothing
RECENT_STEPS = 2
#: after so many rounds with a piece comes one without, so that it is known how long those take
ROUNDS_BETWEEN_STEPS = 6


class ReadingPace:
    """The length of the next piece, from how long rounds with and without one took.

    The longer a piece, the more tokens a second a round reads, so that a length that follows from the last round's
    tokens per second comes closer to the one that takes as long as it may, and does not overshoot.

    longest   tokens of a piece, at most
    """

    def __init__(self, longest: int):
        self.longest = longest
        self.step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        #: that the last round with a piece read; 0 before the first one
        self.tokens_per_second = 0.0
        self.rounds_since_step = 0

    @property
    def length(self) -> int:
        """Tokens of the next piece."""
        length = round(ROUND_STEPS * min(self.step_seconds, default=0.0) * self.tokens_per_second)
        return min(self.longest, max(FEWEST_PROMPT_TOKENS, length))

    @property
    def is_step_due(self) -> bool:
        """Whether the next round should read no piece."""
        return self.rounds_since_step >= ROUNDS_BETWEEN_STEPS

    def note_round(self, n_read: int, seconds: float) -> None:
        """A round that read `n_read` tokens of prompts took so long."""
        if not n_read:
            self.step_seconds.append(seconds)
            self.rounds_since_step = 0
            return
        self.rounds_since_step += 1
        if n_read >= FEWEST_PROMPT_TOKENS and seconds:
            rate = n_read / seconds
            # a prompt's last piece is shorter than it may be, and says nothing against longer ones
            self.tokens_per_second = rate if n_read >= self.length else max(rate, self.tokens_per_second)
