"""The language model of a folder for texts and images, opened alone: what reads images is left out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pellucid.hub.tables import FAMILIES
from pellucid.hub.tables.entries import FamilyError, format_value

#: entries of config.json that only images, or the places of images in a text, depend on
OF_IMAGES = ("vision_config", "mm_tokens_per_image", "video_token_id", "vision_start_token_id", "vision_end_token_id")
OF_IMAGES += tuple(f"{kind}_token_{form}" for kind in ("image", "boi", "eoi") for form in ("id", "index"))
#: the modules that read images, at the beginning of their tensors' names
IMAGE_MODULES = ("visual.", "vision_tower.", "multi_modal_projector.")


@dataclass(frozen=True)
class TextTower:
    """The language model inside one kind of model for texts and images.

    model_class, body  their class with a readout, and without one
    family      the family that computes the same for a text alone
    tied        whether W_U is W_E where config.json does not say it
    defaults    entries of text_config with other defaults than the family's
    unread      entries of the family that their class does not read, with the values that stand for this
    """

    model_class: str
    body: str
    family: str
    tied: bool
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unread: Mapping[str, Any] = field(default_factory=dict)


TEXT_TOWERS = {
    "gemma3": TextTower(
        "Gemma3ForConditionalGeneration",
        "Gemma3Model",
        "gemma3_text",
        tied=True,
        unread={"final_logit_softcapping": None},
    ),
    # three positions for each token, of which a text alone makes one
    "qwen3_vl": TextTower(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLModel",
        "qwen3",
        tied=False,
        defaults={"max_position_embeddings": 128_000, "rope_theta": 500_000.0},
        unread={"use_sliding_window": False, "layer_types": None},
    ),
}


def text_tower(config: Mapping[str, Any]) -> TextTower | None:
    """The language model inside the model of this config.json, None if it is no model for texts and images."""
    name = config.get("model_type")
    return TEXT_TOWERS.get(name) if isinstance(name, str) else None


def text_config(config: Mapping[str, Any], tower: TextTower) -> dict[str, Any]:
    """The config.json of the language model alone, as a model of its family has it.

    Entries beside text_config and the images' are kept, so that an unknown one is named. Raises FamilyError if
    text_config is no object.
    """
    own = config.get("text_config") or {}
    if not isinstance(own, Mapping):
        raise FamilyError(f"text_config = {format_value(own)} in config.json: expected an object")
    beside = {name: value for name, value in config.items() if name not in (*OF_IMAGES, "text_config")}
    family = FAMILIES[tower.family]
    classes = {tower.model_class: family.model_class, tower.body: family.body}
    named = beside.get("architectures")
    tied = config.get("tie_word_embeddings")
    return {
        **tower.defaults,
        **beside,
        **own,
        **tower.unread,
        "model_type": family.name,
        "architectures": [classes.get(name, name) for name in named] if isinstance(named, list) else named,
        # their readout stands outside the language model, and the entry there decides
        "tie_word_embeddings": tower.tied if tied is None else tied,
        **{name: beside[name] for name in ("bos_token_id", "eos_token_id") if beside.get(name) is not None},
    }


class TextTensors(Mapping[str, Tensor]):
    """The tensors of the language model, under the names that it has alone; each is read when it is looked up."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors
        self.names = {text_model_name(name): name for name in tensors if not of_images(name)}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def of_images(name: str) -> bool:
    """Whether a tensor of the folder belongs to what reads images."""
    return name.removeprefix("model.").startswith(IMAGE_MODULES)


def whole_model_name(name: str) -> str:
    """The inverse of `text_model_name`, as present files have it."""
    return name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name


def text_model_name(name: str) -> str:
    """The name of a tensor in the language model alone: `model.language_model.norm.weight` is `model.norm.weight`.

    Older files have `language_model.model.` and `language_model.lm_head.`, bare models `language_model.`.
    """
    for inside, outside in (
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
        ("language_model.", "model."),
    ):
        if name.startswith(inside):
            return outside + name.removeprefix(inside)
    return name
