"""Numbers as answers: tensors as .npy bytes, tokens as objects of JSON, and long work as lines of JSON."""

import base64
import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response
from torch import Tensor

from pellucid.text.tokenizers.base import Tokenizer


def npy(values: np.ndarray | Tensor) -> Response:
    """An array as the bytes that `numpy.load` reads; float64 and bfloat16 are sent as float32."""
    array = values.detach().cpu().float().numpy() if isinstance(values, Tensor) else values
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return Response(file.getvalue(), media_type="application/octet-stream")


def npz(values: Mapping[str, np.ndarray]) -> Response:
    """Arrays by name as the bytes that `numpy.load` reads."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **values)
    return Response(file.getvalue(), media_type="application/octet-stream")


def json_number(value: float) -> float | None:
    """A number as JSON can hold it: None for NaN and the infinities."""
    number = float(value)
    return number if math.isfinite(number) else None


def numbers(values: Tensor) -> list[Any]:
    """A tensor as nested lists, with None for NaN and the infinities."""
    return nested(values.detach().cpu().double().tolist())


def nested(values: Any) -> Any:
    """The same nested lists with None for NaN and the infinities."""
    return [nested(value) for value in values] if isinstance(values, list) else json_number(values)


def spell(tokenizer: Tokenizer | None, token: int) -> str:
    """A token as text; its id where nothing spells it."""
    if tokenizer is None or token >= tokenizer.n_vocab:
        return str(token)
    return tokenizer.token_str(token)


def token_object(tokenizer: Tokenizer | None, token: int) -> dict[str, Any]:
    """One token: its id, its text as `Trace.tokens` has it, its bytes in base64, and whether it is special."""
    text = spell(tokenizer, token)
    if tokenizer is None or token >= tokenizer.n_vocab:
        return {"id": token, "text": text, "bytes": "", "special": True}
    special = token in tokenizer.special.values()
    raw = b"" if special else tokenizer.token_bytes(token)
    return {"id": token, "text": text, "bytes": base64.b64encode(raw).decode(), "special": special}
