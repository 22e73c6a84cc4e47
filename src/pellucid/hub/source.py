"""The implementation that a model comes from or goes to, where it is installed: its logits for our tokens."""

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def is_installed(adapter: Path | None = None) -> bool:
    """Whether Hugging Face's transformers, and peft for an adapter, can be imported; nothing is to find out."""
    return all(importlib.util.find_spec(name) is not None for name in _packages(adapter))


def version(adapter: Path | None = None) -> str:
    """transformers and its version, and that of peft for an adapter."""
    from importlib.metadata import version as installed

    return " and ".join(f"{name} {installed(name)}" for name in _packages(adapter))


def _packages(adapter: Path | None) -> list[str]:
    return ["transformers", "peft"] if adapter else ["transformers"]


def their_logits(
    folder: Path,
    model_class: str | type,
    tokens: tuple[Tensor, ...],
    dtype: torch.dtype,
    adapter: Path | None = None,
    **given: list[Tensor],
) -> list[Tensor]:
    """Logits of a class of transformers for each text [1, n, n_vocab], weights from the folder, changed by an adapter.

    model_class  the name of a class of transformers' own, or the class that a model's own code defines
    given        further inputs, one for each text

    Code in the folder is not run, pickles are read as tensors alone. Raises ValueError where the folder does not give
    the class all its weights, and nothing else.
    """
    import transformers
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    options: dict[str, Any] = {} if isinstance(model_class, type) else {"attn_implementation": "eager"}
    opened: Any = model_class if isinstance(model_class, type) else getattr(transformers, model_class)
    try:
        model, info = opened.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
    if wrong := {name: sorted(map(str, found))[:3] for name, found in info.items() if found and "missing" in name}:
        raise ValueError(f"{version()} opens {folder} with {json.dumps(wrong)}: its weights are not complete")
    if adapter is not None:
        from peft import PeftModel

        with warnings.catch_warnings():  # peft asks transformers for what its next version calls otherwise
            warnings.simplefilter("ignore", FutureWarning)
            model = PeftModel.from_pretrained(model, str(adapter)).to(dtype)
    made = []
    with torch.no_grad():
        for n, text in enumerate(tokens):
            more: dict[str, Any] = {name: values[n] for name, values in given.items()}
            ids = "decoder_input_ids" if "input_ids" in more else "input_ids"
            made.append(model.eval()(**{ids: text}, **more, use_cache=False).logits.double())
    return made
