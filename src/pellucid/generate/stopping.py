"""Stop strings, found in the text itself and never shown, not even in part, while it streams."""

from collections.abc import Sequence

from pellucid.generate.errors import GenerationError


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may still become one.

    The stop string that is complete first decides, and the longest of those that end together; it does not matter how
    the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]):
        if any(not isinstance(stop, str) or not stop for stop in stops):
            raise GenerationError(f"stop = {list(stops)!r}: expected strings of at least one character")
        self.stops = tuple(stops)
        self.held = ""
        #: whether a stop string has occurred; nothing is passed on after it
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown after `text` arrived."""
        if self.stopped:
            return ""
        waiting = self.held + text
        matches = [(at + len(stop), at) for stop in self.stops if (at := waiting.find(stop)) >= 0]
        if matches:
            self.stopped, self.held = True, ""
            return waiting[: min(matches)[1]]
        keep = max((_overlap(waiting, stop) for stop in self.stops), default=0)
        self.held = waiting[len(waiting) - keep :]
        return waiting[: len(waiting) - keep]

    def finish(self) -> str:
        """The held-back text that can no longer become a stop string."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a proper beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
