"""Numbers as answers in JSON: tensors as the bytes of .npy files in base64, tokens as objects."""

import base64
import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pellucid.text.tokenizers.base import Tokenizer


def with_arrays(arrays: Mapping[str, np.ndarray | Tensor], **answer: Any) -> dict[str, Any]:
    """An answer with arrays by name, which the page decodes: each as what `numpy.save` writes, in base64.

    Floats are sent as float32, tensors of uint8 as they are.
    """
    return answer | {"arrays": {name: base64.b64encode(npy(array)).decode() for name, array in arrays.items()}}


def npy(values: np.ndarray | Tensor) -> bytes:
    """An array as the bytes that `numpy.load` reads; float64, bfloat16 and integers of a tensor become float32."""
    if isinstance(values, Tensor):
        values = (values if values.dtype == torch.uint8 else values.detach().float()).cpu().numpy()
    array = values.astype(np.float32) if values.dtype == np.float64 else values
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    return file.getvalue()


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


def spell(tokenizer: Tokenizer, token: int) -> str:
    """A token as text; its id where nothing spells it."""
    return str(token) if token >= tokenizer.n_vocab else tokenizer.token_str(token)


def token_object(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """One token: its id, its text as `Trace.tokens` has it, its bytes in base64, and whether it is special."""
    text = spell(tokenizer, token)
    if token >= tokenizer.n_vocab:
        return {"id": token, "text": text, "bytes": "", "special": True}
    special = token in tokenizer.special.values()
    raw = b"" if special else tokenizer.token_bytes(token)
    return {"id": token, "text": text, "bytes": base64.b64encode(raw).decode(), "special": special}
