"""Run Hugging Face's transformers, where it is installed: its logits for our tokens."""

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.extras import is_importable


def is_installed(adapter: Path | None = None) -> bool:
    """Whether transformers, and peft for an adapter, can be imported, without importing them."""
    return not missing(adapter)


def missing(adapter: Path | None = None) -> str:
    """Those of transformers, and of peft for an adapter, that cannot be imported."""
    return " and ".join(name for name in _packages(adapter) if not is_importable(name))


def version(adapter: Path | None = None) -> str:
    """The name and version of transformers, and of peft for an adapter."""
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
    *,
    hidden_of: int | None = None,
    **inputs: list[Tensor | None],
) -> list[Tensor | None]:
    """The logits of a transformers class for each call [batch, n, n_vocab], with weights from the folder and an
    adapter.

    model_class  the name of a class of transformers, or the class that a model's own code defines
    hidden_of    the number of a call whose hidden states are returned, instead of logits
    inputs       further inputs, one for each call, None where it has none

    A call gives None if the class does not take one of its inputs. Classes of transformers read batches with padding in
    float32, and so all later ones. Code in the folder is not run, and pickles are read as tensors only. Raises
    ValueError unless the folder gives the class exactly its weights.
    """
    model = _open_theirs(folder, model_class, dtype, adapter)
    if hidden_of is not None:
        only = {name: values[hidden_of] for name, values in inputs.items()}
        output = _model_output(model, tokens[hidden_of], only, output_hidden_states=True)
        return [*_hidden_states(output)]
    outputs: list[Tensor | None] = []
    for n, text in enumerate(tokens):
        own = {name: values[n] for name, values in inputs.items() if values[n] is not None}
        if isinstance(model_class, str) and any(_has_padding(name, value) for name, value in own.items()):
            # padding may have nothing to read: some classes hide all keys with float64's least number cast to float32,
            # which is -inf; the padding's output is then not a number, and 0 times it spreads
            model.float()
        output = _model_output(model, text, own)
        outputs.append(None if output is None else output.logits.cpu().double())
    return outputs


def _open_theirs(folder: Path, model_class: str | type, dtype: torch.dtype, adapter: Path | None) -> Any:
    """The model of the class in eval mode, with the adapter's weights beside it."""
    import transformers

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}  # the other ones lack some precisions
    options: dict[str, Any] = {} if isinstance(model_class, type) else eager
    loader: Any = model_class if isinstance(model_class, type) else getattr(transformers, model_class)
    with _quiet_transformers():
        model, info = loader.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
    if wrong := {name: sorted(map(str, names))[:3] for name, names in info.items() if names and "missing" in name}:
        raise ValueError(f"{version()} opens {folder} with {json.dumps(wrong)}: its weights are not complete")
    if adapter is not None:
        from peft import PeftModel

        with warnings.catch_warnings():  # the logits show what its warnings are about
            warnings.simplefilter("ignore")
            model = PeftModel.from_pretrained(model, str(adapter)).to(dtype)
    return model.eval()


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """transformers prints no progress and no warnings inside."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


#: the position of the first token, for models that do not count from 0
FIRST_POSITION = dict.fromkeys(("roberta", "xlm-roberta"), lambda config: config.pad_token_id + 1)


def _has_padding(name: str, value: Tensor | None) -> bool:
    return name.endswith("attention_mask") and value is not None and not bool(value.all())


def _model_output(model: Any, text: Tensor, inputs: Mapping[str, Tensor | None], **options: bool) -> Any:
    """The model's output for one call, None if its class does not take one of these inputs."""
    more = {name: value for name, value in inputs.items() if value is not None}
    if not more.keys() <= inspect.signature(model.forward).parameters.keys():
        return None
    if "position_ids" in more and model.config.model_type in FIRST_POSITION:
        more["position_ids"] = more["position_ids"] + FIRST_POSITION[model.config.model_type](model.config)
    ids = "decoder_input_ids" if "input_ids" in more else "input_ids"
    with torch.no_grad():
        return model(**{ids: text}, **more, **options, use_cache=False)


def _hidden_states(output: Any) -> tuple[Tensor, ...]:
    """The stream before each block and after the last one, the encoder's first."""
    if output is None:
        return ()
    both = "encoder_hidden_states" in output
    return (*output.encoder_hidden_states, *output.decoder_hidden_states) if both else tuple(output.hidden_states)
