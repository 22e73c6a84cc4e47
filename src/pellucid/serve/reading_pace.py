"""How many tokens of a prompt are read between two decoding steps."""

#: tokens of the first piece, and of the shortest: a shorter one takes no less time, because each reads all weights once
FIRST_PIECE, SHORTEST_PIECE = 32, 16


class ReadingPace:
    """The length of the next piece of a prompt, from how long pieces and decoding steps took.

    A piece is to take as long as a step: a prompt that arrives should delay nobody's next token by more than one and a
    half steps, and a piece may take longer than the one before it.

    longest   tokens of a piece, at most
    """

    def __init__(self, longest: int):
        self.longest = longest
        self.length = min(FIRST_PIECE, longest)
        self.step_seconds = 0.0

    def note_step(self, seconds: float) -> None:
        """A decoding step took so long; half of the figure is from the steps before."""
        self.step_seconds = (self.step_seconds + seconds) / 2 if self.step_seconds else seconds

    def note_piece(self, n_tokens: int, seconds: float) -> None:
        """A piece took so long: the next one is to take as long as a step, and changes by a factor of two at most."""
        if not self.step_seconds or not seconds:
            return
        factor = min(2.0, max(0.5, self.step_seconds / seconds))
        # a prompt's last piece is shorter than it may be, and says nothing against longer ones
        length = max(factor * n_tokens, self.length if factor >= 1 else 0)
        self.length = min(self.longest, max(SHORTEST_PIECE, round(length)))
