"""Check a config.json before anything is allocated, and read the architecture that it describes."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.hub.canonical_fields import value_at
from pellucid.hub.families import FamilyError, LazyStateDict, architecture_of
from pellucid.hub.own_code import architecture_in, has_pellucid_code
from pellucid.hub.tables import FAMILIES, Family
from pellucid.hub.tables.entries import BOUNDS, LARGEST_INTEGER, format_value
from pellucid.model_names import FolderError
from pellucid.parameter_counts import count_parameters, oversized_table

MOST_CONFIG_NUMBERS, LONGEST_NGRAM = 1 << 14, 1 << 10
#: how many times the numbers in the files an architecture may need for a missing tensor to be looked for
LARGEST_SURPLUS = 2


def read_config(path: Path, config: Mapping[str, Any]) -> Architecture:
    """The architecture that a folder's config.json describes, with every entry checked. Raises ValueError with one
    line.
    """
    _check_entries(config)
    # the code next to a model is never run: of a known family its class is computed, and ours has its configuration
    name = config.get("model_type")
    if config.get("auto_map") and not has_pellucid_code(config) and not (isinstance(name, str) and name in FAMILIES):
        raise FolderError(
            f"{path / 'config.json'} asks for code of its own (auto_map), which Pellucid does not run, and "
            f"model_type = {format_value(name)} is not a known family"
        )
    refuse_quantised(path, config)
    if has_pellucid_code(config):
        return architecture_in(config)
    try:
        return architecture_of(config)
    except FamilyError as error:
        raise FamilyError(f"{path}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise FolderError(f"{path / 'config.json'} is damaged: {error!r}") from None


#: the methods of quantization_config.quant_method by the names that people know them by
QUANTISED = {
    "awq": "AWQ",
    "gptq": "GPTQ",
    "bitsandbytes": "bitsandbytes",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8 (FBGEMM)",
    "mxfp4": "MXFP4",
    "compressed-tensors": "compressed-tensors",
    "modelopt": "ModelOpt",
    "aqlm": "AQLM",
    "hqq": "HQQ",
    "eetq": "EETQ",
    "quanto": "Quanto",
    "torchao": "torchao",
    "bitnet": "BitNet",
}
#: entries of config.json that describe quantised weights, and endings of the tensors that hold them
QUANTISED_ENTRIES = ("quantization_config", "compression_config", "text_config.quantization_config")
QUANTISED_TENSORS = {
    ".qweight": "GPTQ or AWQ",
    ".weight_scale_inv": "FP8",
    ".weight_scale": "FP8 or compressed-tensors",
    ".weight_packed": "compressed-tensors",
    ".absmax": "bitsandbytes",
    "_blocks": "MXFP4",
}


def refuse_quantised(path: Path, config: Mapping[str, Any], names: Iterable[str] = ()) -> None:
    """Raise FolderError, with the method's name, if config.json or the tensors' names say that weights are quantised.

    Their tensors hold integers with scales, in a layout of each method; read as weights they would be noise.
    """
    method, where = "", ""
    for entry in QUANTISED_ENTRIES:
        if not method and (options := value_at(config, entry)) not in (None, {}):
            method, where = _method_of(options), entry
    for ending, name_of_method in QUANTISED_TENSORS.items():
        if not method and (name := next((n for n in names if n.endswith(ending)), "")):
            method, where = name_of_method, f"the tensor {name[:80]}"
    if method:
        raise FolderError(
            f"{path}: the weights are quantised by {method} ({where}), which Pellucid does not read: open the model in "
            "float32, float16 or bfloat16 that they were made from, or a GGUF file of it (q8_0 and q4_0 are read)"
        )


def _method_of(options: Any) -> str:
    """The name of the method that the entry of a config.json describes."""
    if not isinstance(options, Mapping):
        return f"an unknown method ({format_value(options)})"
    method = options.get("quant_method")
    if method is None and any(options.get(f"load_in_{bits}bit") for bits in (4, 8)):
        method = "bitsandbytes"  # its earlier files name no method
    if not isinstance(method, str):
        return f"an unknown method ({format_value(dict(options))})"
    return QUANTISED.get(method, method[:40])


def is_body(config: Mapping[str, Any], family: Family, names: Iterable[str]) -> bool:
    """Whether the weights have no readout; for a config.json that names no class."""
    of_heads = {row.theirs.split(".")[0] for row in family.rows if row.modules[0].split(".")[0] == "unembed"}
    return not config.get("architectures") and not any(name.split(".")[0] in of_heads for name in names)


def _check_entries(value: Any, depth: int = 0) -> None:
    """Raise FolderError for unreasonable numbers, list lengths or nesting in config.json."""
    if isinstance(value, dict | list):
        if len(value) > MOST_CONFIG_NUMBERS or depth > 16:
            raise FolderError(f"config.json holds a list of {len(value):,} entries or one nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            _check_entries(one, depth + 1)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST_INTEGER:
        raise FolderError(f"config.json holds the number {str(value)[:40]}: expected {LARGEST_INTEGER:,} at most")


def check_sizes(path: Path, a: Architecture) -> None:
    """Raise FolderError for sizes that no model has."""
    sizes = a.to_dict()
    for name, most in BOUNDS.items():
        if (value := value_at(sizes, name)) is not None and not value <= most:
            raise FolderError(f"{path}: {name} = {value}: expected {most:,} at most")
    if max(a.ngrams, default=0) > LONGEST_NGRAM:
        raise FolderError(f"{path}: ngrams = {max(a.ngrams)}: expected {LONGEST_NGRAM} at most")
    if a.encoder is not None:
        check_sizes(path, a.encoder)


def check_weights(path: Path, a: Architecture, n_numbers: int, missing: Callable[[], str] = lambda: "") -> None:
    """Raise FolderError if the architecture needs more numbers than the weight files hold, `n_numbers`.

    `missing` says which tensor is not there, "" if all are. The position table, which no file holds, may be larger than
    the weights if it is of a usual size.
    """
    if wrong := oversized_table(a, n_numbers):
        raise FolderError(f"{path}: {wrong}")
    asked = count_parameters(a)["total"]
    if asked > n_numbers:
        # sizes that the files come nowhere near would take memory even as a list of names
        name = missing() if asked <= LARGEST_SURPLUS * n_numbers else ""
        lacking = f", and the tensor {name}" if name else ""
        raise FolderError(
            f"{path}: the configuration needs {asked:,} numbers, but the files hold {n_numbers:,}{lacking}"
        )


def missing_tensor(tensors: Mapping[str, Tensor], config: Mapping[str, Any], family: Family) -> str:
    """The first tensor that a config.json needs and that is not there, and where it may come from; "" if all are
    there.
    """
    state = LazyStateDict(tensors, config, family)
    name, readout = state.missing(), next((f"{row.theirs}.weight" for row in family.rows if row.ours == "unembed"), "")
    if not name or name != readout:
        return f"{name} is missing" if name else ""
    said = f"{name} is missing, without which the readout is tied to the embedding"
    if "logit_scale" in family.limits:
        return (
            f"{said}: Pellucid cannot represent a readout of {family.name} that is tied and not scaled "
            "(scale_decoder_outputs = false), so write a copy of the embedding into the file under that name"
        )
    return f"{said}: if it is, set tie_word_embeddings to true in config.json"
