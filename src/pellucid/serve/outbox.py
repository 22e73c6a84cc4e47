"""What the engine's thread tells to the event loop."""

import asyncio
import contextlib
from collections import deque
from typing import Any


class Outbox:
    """Puts items into queues of an event loop, from other threads.

    The loop is woken once for all items that are put before it gets to them: a step of 64 sequences wakes it about once
    and not 64 times.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.loop = loop
        self.items: deque[tuple[asyncio.Queue[Any], Any]] = deque()
        self.waking = False

    def put(self, queue: asyncio.Queue[Any], item: Any) -> None:
        """Put an item into a queue; called in any thread."""
        self.items.append((queue, item))
        if not self.waking:
            self.waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits for the item
                self.loop.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Called in the loop's thread. What is put from here on wakes the loop again."""
        self.waking = False
        while self.items:
            queue, item = self.items.popleft()
            queue.put_nowait(item)
