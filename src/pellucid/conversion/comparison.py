"""The comparison that a conversion must pass: Pellucid's logits with those of what reads the source and the result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pellucid.adapters import family_of_base, open_base
from pellucid.conversion.opened_model import OpenedModel
from pellucid.conversion.request import Layout, Request
from pellucid.hub import transformers_bridge
from pellucid.hub.canonical_fields import without_dropout
from pellucid.hub.families import FAMILIES, config_of, each_to_ours, each_to_theirs, to_ours
from pellucid.hub.files import ADAPTER, read_object
from pellucid.hub.gguf import FACTORS, gguf_family, read_gguf
from pellucid.hub.open import open_folder, read_network
from pellucid.hub.own_code import model_class
from pellucid.hub.peft import MergedTensors, read_adapter
from pellucid.hub.text_towers import text_model_name
from pellucid.model import Transformer
from pellucid.starting_model import base_weights
from pellucid.training.load import read_recipe
from pellucid.verify.parity import (
    Parity,
    ParityError,
    ProbeInput,
    check_masks,
    compare_logits,
    defined_logits,
    first_beside_definition,
    first_of_networks,
    first_of_streams,
    logits_of_float32_angles,
    make_probe,
    our_logits,
)

#: tolerance relative to max(1, largest logit): a folder's code is the network's own source, so that only sums may round
#: differently
CODE_TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class Implementation:
    """What computes the model besides Pellucid's network: it gives the logits of every call of a probe.

    name           as messages name it
    logits         of each call, None for one whose inputs it does not take
    first          (network, number of a call, allowed difference) -> the first tensor that differs
    tolerance      relative to max(1, largest logit); None for that of the precision
    float32_angles whether it computes rotary angles in float32
    """

    name: str
    logits: Callable[[], list[Tensor | None] | list[Tensor]]
    first: Callable[[Transformer, int, float], str]
    tolerance: float | None = None
    float32_angles: bool = False


def compare_implementations(network: Transformer, other: Implementation, probe: ProbeInput) -> Parity:
    """Compare a network of ours with another implementation of the model; if they differ, the first tensor that does
    is named. Raises ParityError if the network's masks are not those of the definition.
    """
    check_masks(network)
    ours = our_logits(network, probe)
    rounded = logits_of_float32_angles(network, probe) if other.float32_angles else None
    parity = compare_logits(ours, other.logits(), other.name, probe, rounded, other.tolerance)
    return parity.named(lambda n: other.first(network, n, parity.allowed))


def class_of_transformers(
    folder: Path, their_class: str, probe: ProbeInput, adapter: Path | None = None
) -> Implementation:
    """A class of transformers on a folder, and peft on an adapter; its hidden states say where it differs."""

    def read(hidden_of: int | None = None) -> list[Tensor | None]:
        inputs = folder, their_class, probe.tokens, probe.dtype, adapter
        return transformers_bridge.their_logits(*inputs, hidden_of=hidden_of, **probe.given)

    def first(network: Transformer, n: int, allowed: float) -> str:
        return first_of_streams(network, probe.cases[n], read(n), allowed)

    return Implementation(transformers_bridge.version(adapter), read, first, float32_angles=True)


def exported_code(folder: Path, probe: ProbeInput) -> Implementation:
    """The code in a folder that was written, which is the network's own source."""
    inputs = dict(probe.given)
    if probe.a.encoder is not None:
        for name in ("token_type_ids", "position_ids"):
            inputs |= {f"decoder_{name}": inputs.pop(name)} if name in inputs else {}

    def read(hidden_of: int | None = None) -> list[Tensor | None]:
        of_class = folder, model_class(probe.a), probe.tokens, probe.dtype, None
        return transformers_bridge.their_logits(*of_class, hidden_of=hidden_of, **inputs)

    def first(network: Transformer, n: int, allowed: float) -> str:
        return first_of_streams(network, probe.cases[n], read(n), tolerance)

    tolerance = CODE_TOLERANCES[probe.dtype]
    return Implementation(f"{transformers_bridge.version()} by the code in the folder", read, first, tolerance)


def definition(exact: Transformer, probe: ProbeInput) -> Implementation:
    """The NumPy definition on the weights of a network in float64."""

    def first(network: Transformer, n: int, allowed: float) -> str:
        return first_beside_definition(network, exact, probe.cases[n])

    return Implementation("the NumPy reference", lambda: defined_logits(exact, probe), first)


def network_of(model: OpenedModel, name: str, probe: ProbeInput) -> Implementation:
    """Pellucid's own network of the model, for files that nothing else opens here."""

    def first(network: Transformer, n: int, allowed: float) -> str:
        return first_of_networks(network, model.network(probe.dtype), probe.cases[n])

    return Implementation(name, lambda: our_logits(model.network(probe.dtype), probe), first)


def implementation_of_source(model: OpenedModel, probe: ProbeInput) -> Implementation | None:
    """The implementation of a source of Hugging Face; None for other sources and where it is not installed."""
    folder = model.folder
    if folder is None or model.family is None or not transformers_bridge.is_installed(folder.adapter):
        return None
    return class_of_transformers(folder.path, folder.their_class, probe, folder.adapter)


def compare_conversion(model: OpenedModel, folder: Path, request: Request) -> Parity:
    """Compare Pellucid's logits with those of the source, by its own implementation, and with those of the result in
    `folder`, by what opens it. Raises ParityError where one of the two differs by more than rounding.
    """
    assert request.layout is not None
    probe = make_probe(model.architecture, model.tokenizer)
    source, of_source = implementation_of_source(model, probe), None
    if source is not None and request.layout != "pellucid":  # that layout's result is compared with it itself
        of_source = compare_implementations(model.network(probe.dtype), source, probe).require()
    return replace(COMPARISON_OF_LAYOUT[request.layout](model, folder, request, probe), of_source=of_source)


def compare_pellucid(model: OpenedModel, folder: Path, request: Request, probe: ProbeInput) -> Parity:
    """The network that the files in our layout hold, and the source's implementation, or else the definition."""
    network = read_network(model.architecture, open_folder(folder).ours(), probe.dtype)
    other = implementation_of_source(model, probe) or definition(model.network(torch.float64), probe)
    return compare_implementations(network, other, probe).require()


def compare_huggingface(model: OpenedModel, folder: Path, request: Request, probe: ProbeInput) -> Parity:
    """Our network, and the class or the code of transformers that opens the folder. If transformers is not installed,
    the files are read back through the tables and compared with the definition.
    """
    if not transformers_bridge.is_installed():
        network = read_network(model.architecture, open_folder(folder).ours(), probe.dtype)
        return compare_implementations(network, definition(model.network(torch.float64), probe), probe).require()
    if (family := request.exported_family) is None:
        opened = exported_code(folder, probe)
    else:
        opened = class_of_transformers(folder, family.model_class, probe)
    return compare_implementations(model.network(probe.dtype), opened, probe).require()


def compare_gguf(model: OpenedModel, folder: Path, request: Request, probe: ProbeInput) -> Parity:
    """The network that is read back from the file, and the model's: the same logits in float32, else every tensor
    within rounding.
    """
    family, a = gguf_family(model.architecture), without_dropout(model.architecture)
    _, tensors = read_gguf(folder / request.destination.name)
    tensors.pop(FACTORS, None)
    written = to_ours(tensors, family.entries(a), family)
    network = read_network(model.architecture, written.items(), probe.dtype)
    parity = compare_implementations(network, network_of(model, "the model itself", probe), probe)
    if request.weights in (None, "float32"):
        return parity.require()
    check_rounding(written, model.state(), request.weights)
    return parity


def compare_adapter(model: OpenedModel, folder: Path, request: Request, probe: ProbeInput) -> Parity:
    """The run's network, and peft on the adapters; where it is not installed, or the base is no folder that
    transformers opens, the weights that are merged from the written files.
    """
    assert model.run is not None
    recipe = read_recipe(model.run)
    opened = open_base(recipe, request.trust)
    if opened is not None and opened.family is not None and transformers_bridge.is_installed(folder):
        by_peft = class_of_transformers(opened.path, opened.their_class, probe, folder)
        return compare_implementations(model.network(probe.dtype), by_peft, probe).require()
    family = FAMILIES[request.family] if request.family else family_of_base(recipe, request.trust)
    # the rates have no effect on the logits, and not every family has entries for them
    a, base = without_dropout(model.architecture), base_weights(recipe, request.trust)
    changes = {
        text_model_name(module): change for module, change in read_adapter(folder, read_object(folder, ADAPTER)).items()
    }
    theirs = dict(each_to_theirs(base, a, family)) if family else base
    merged = MergedTensors(theirs, changes, family, a)
    ours = each_to_ours(merged, config_of(a, family), family) if family else merged.items()
    network = read_network(a, ours, probe.dtype)
    return compare_implementations(network, network_of(model, "the run itself", probe), probe).require()


#: what each layout's result is compared with
COMPARISON_OF_LAYOUT: dict[Layout, Callable[[OpenedModel, Path, Request, ProbeInput], Parity]] = {
    "pellucid": compare_pellucid,
    "huggingface": compare_huggingface,
    "gguf": compare_gguf,
    "adapter": compare_adapter,
}

#: the allowed change of a tensor in fewer bits, relative to its largest number: half a step, or a whole one where the
#: largest number of a sign has no code of its own, and that of the scale
ROUNDING = {"float16": 2**-10, "q8_0": 0.5 / 127 + 2**-9, "q5_0": 1 / 16 + 2**-9, "q4_0": 1 / 8 + 2**-9}


def check_rounding(read: Mapping[str, Tensor], exact: Mapping[str, Tensor], number_format: str) -> None:
    """Raise ParityError if a tensor differs from what was to be written by more than rounding."""
    for name, tensor in exact.items():
        apart = (read[name] - tensor.float()).abs().max().item() if tensor.numel() else 0.0
        if apart > ROUNDING[number_format] * tensor.abs().max().item():
            raise ParityError(f"{name} is {apart:.1e} from what was to be written: rounding to {number_format} is less")
