"""Threads beside the event loop, which other streams need meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
ResultT = TypeVar("ResultT")

#: bytes of a body that are read on the event loop at most, and of a request that is no long one
SHORT_BODY = 2**16
#: bytes of the body of the request that is being answered
body_bytes: ContextVar[int] = ContextVar("body_bytes", default=0)
#: long requests have threads of their own: however many there are, short ones do not wait for them
LONG_REQUESTS = ThreadPoolExecutor(2, thread_name_prefix="pellucid long request")


async def in_thread(
    function: Callable[Arguments, ResultT], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> ResultT:
    """`function` of these, computed in a thread."""
    pool = LONG_REQUESTS if body_bytes.get() > SHORT_BODY else None
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*args, **kwargs))
