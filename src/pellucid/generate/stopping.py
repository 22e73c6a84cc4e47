"""Stop strings, found in the text itself and never shown, not even in part, while it streams."""

from collections.abc import Sequence

from pellucid.generate.errors import GenerationError


class StopStrings:
    """Lets text through up to the first stop string, and holds back what may yet become one.

    The stop string that is complete first decides, the longest of those that end together; it does not
    matter in what pieces the text arrives.
    """

    def __init__(self, stops: Sequence[str]):
        if any(not isinstance(stop, str) or not stop for stop in stops):
            raise GenerationError(f"stop = {list(stops)!r}: expected strings of at least one character")
        self.stops = tuple(stops)
        self.held = ""
        #: whether a stop string has come; nothing is let through after it
        self.stopped = False

    def push(self, text: str) -> str:
        """What can be shown now that `text` has arrived."""
        if self.stopped:
            return ""
        waiting = self.held + text
        found = [(at + len(stop), at) for stop in self.stops if (at := waiting.find(stop)) >= 0]
        if found:
            self.stopped, self.held = True, ""
            return waiting[: min(found)[1]]
        keep = max((_overlap(waiting, stop) for stop in self.stops), default=0)
        self.held = waiting[len(waiting) - keep :]
        return waiting[: len(waiting) - keep]

    def finish(self) -> str:
        """What was held back and will not become a stop string any more."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
