"""A running inspector, as a program holds it."""

import html
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Inspector:
    """An inspector that runs beside a notebook or a script; a notebook shows it in a frame.

    url    where a browser on this machine finds it
    close  stops its server
    """

    url: str
    close: Callable[[], None]

    def _repr_html_(self) -> str:
        address = html.escape(self.url, quote=True)
        return f'<iframe src="{address}" width="100%" height="900" title="Pellucid: the model from inside"></iframe>'
