"""A sparse dictionary: features of what one place of a network holds, and what they add up to at another.

An autoencoder reads and writes the same tensor; a transcoder reads what an MLP reads and writes what it adds to the
stream (Dunefsky et al. 2024). Either is used with JumpReLU, however it was trained:

    h = x W_enc + b_enc,  f = h where h > threshold, else 0,  out = f W_dec + b_dec (+ x W_skip^T)
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pellucid.architecture import Architecture
from pellucid.json_files import JSONFileError, read_json_file
from pellucid.tensor_names import names

DictionaryKind = Literal["autoencoder", "transcoder"]
#: files of a dictionary, as SAELens names them
WEIGHTS_FILE, CONFIG_FILE = "sae_weights.safetensors", "cfg.json"
#: the version of SAELens whose layout is written; it takes files that name none for older ones
SAELENS_VERSION = "6.54.12"
#: SAELens' names of what is used with JumpReLU: whether it has a skip, and whether it is a transcoder
SAELENS_ARCHITECTURES = {
    ("autoencoder", False): "jumprelu",
    ("transcoder", False): "jumprelu_transcoder",
    ("transcoder", True): "jumprelu_skip_transcoder",
}


class DictionaryError(ValueError):
    """Files that hold no dictionary of this kind, or a dictionary that does not fit the model."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a dictionary stands: the tensor that it reads, the one that it writes, and the layer of both."""

    layer: int
    reads: str
    writes: str

    @property
    def kind(self) -> DictionaryKind:
        """What a dictionary is at this place."""
        return "autoencoder" if self.reads == self.writes else "transcoder"


def transcoder_sites(a: Architecture) -> list[Site]:
    """For every layer what its MLP reads, and what it adds to the stream."""
    return [
        Site(layer=layer, reads=f"blocks.{layer}.{mlp_input(a, layer)}", writes=f"blocks.{layer}.mlp_out")
        for layer in range(a.n_layers)
    ]


def mlp_input(a: Architecture, layer: int) -> str:
    """The name, within its block, of the tensor that the MLP of a layer reads (`pellucid.model.block`)."""
    before = {"post": ("norm_cross", "norm_1", "resid_mid"), "shared": ("norm_1", "resid_pre")}
    before |= {"parallel": ("norm_2", "resid_pre")}
    known = set(names(a))
    candidates = before.get(a.block, ("norm_2", "resid_cross", "resid_mid"))
    return next(name for name in candidates if f"blocks.{layer}.{name}" in known)


class Dictionary(nn.Module):
    """A dictionary of `n_features` features.

    d_in, d_out   widths of what is read and written
    has_skip      whether a linear map of what is read is added (Paulo et al. 2025)
    """

    def __init__(self, d_in: int, d_out: int, n_features: int, has_skip: bool = False):
        super().__init__()
        self.W_enc = nn.Parameter(torch.empty(d_in, n_features))
        self.b_enc = nn.Parameter(torch.zeros(n_features))
        self.W_dec = nn.Parameter(torch.empty(n_features, d_out))
        self.b_dec = nn.Parameter(torch.zeros(d_out))
        self.W_skip = nn.Parameter(torch.zeros(d_out, d_in)) if has_skip else None
        self.threshold: Tensor
        self.register_buffer("threshold", torch.zeros(n_features))

    @property
    def n_features(self) -> int:
        """How many features there are."""
        return self.W_enc.size(1)

    def pre_activations(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows feature"]:
        """h, before the threshold."""
        return x @ self.W_enc + self.b_enc

    def encode(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows feature"]:
        """The features' activations, most of them 0."""
        h = self.pre_activations(x)
        return torch.where(h > self.threshold, h, 0.0)

    def decode(
        self, features: Float[Tensor, "*rows feature"], x: Float[Tensor, "*rows d_in"]
    ) -> Float[Tensor, "*rows d_out"]:
        """What activations stand for; `x`, which was read, is used where there is a skip."""
        out = features @ self.W_dec + self.b_dec
        return out if self.W_skip is None else out + x @ self.W_skip.T

    def forward(self, x: Float[Tensor, "*rows d_in"]) -> Float[Tensor, "*rows d_out"]:
        return self.decode(self.encode(x), x)


@torch.no_grad()
def with_unit_rows(dictionary: Dictionary) -> Dictionary:
    """The same function with rows of W_dec of norm 1, so that an activation is the length of what its feature adds."""
    length = dictionary.W_dec.norm(dim=1)
    length = torch.where(length > 0, length, 1.0)
    dictionary.W_dec.div_(length[:, None])
    dictionary.W_enc.mul_(length)
    dictionary.b_enc.mul_(length)
    dictionary.threshold.mul_(length)
    return dictionary


def save_dictionary(dictionary: Dictionary, site: Site, folder: Path, metadata: dict[str, Any]) -> None:
    """Write a dictionary in the layout that SAELens reads; `metadata` says what it was trained on."""
    folder.mkdir(parents=True, exist_ok=True)
    has_skip = dictionary.W_skip is not None
    if (architecture := SAELENS_ARCHITECTURES.get((site.kind, has_skip))) is None:
        raise DictionaryError("an autoencoder has no skip: leave it out")
    save_file({name: t.detach().contiguous() for name, t in dictionary.state_dict().items()}, folder / WEIGHTS_FILE)
    config = {
        "architecture": architecture,
        "d_in": dictionary.W_enc.size(0),
        "d_sae": dictionary.n_features,
        "dtype": str(dictionary.W_enc.dtype).removeprefix("torch."),
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": {"sae_lens_version": SAELENS_VERSION, "hook_name": site.writes, **asdict(site), **metadata},
    }
    if site.kind == "transcoder":
        config["d_out"] = dictionary.W_dec.size(1)
    (folder / CONFIG_FILE).write_text(
        json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )


@dataclass(frozen=True)
class SavedDictionary:
    """A dictionary from a folder, where it stands, and what its file says of its training."""

    dictionary: Dictionary
    site: Site
    metadata: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a folder in SAELens' layout. Raises DictionaryError for other kinds than those used with JumpReLU."""
        folder = Path(folder)
        try:
            config, state = read_json_file(folder / CONFIG_FILE), load_file(folder / WEIGHTS_FILE)
        except (OSError, JSONFileError, ValueError) as error:
            raise DictionaryError(f"{folder} holds no dictionary: {error}") from None
        architecture = config.get("architecture")
        if architecture not in SAELENS_ARCHITECTURES.values():
            known = ", ".join(SAELENS_ARCHITECTURES.values())
            raise DictionaryError(f"{folder} holds a dictionary of kind {architecture!r}: expected one of {known}")
        for name, usual in (("apply_b_dec_to_input", False), ("normalize_activations", "none")):
            if config.get(name, usual) != usual:
                raise DictionaryError(f"{folder}: {name} = {config[name]!r}: expected {usual!r}")
        metadata = dict(config.get("metadata", {}))
        metadata.pop("sae_lens_version", None)
        hook = metadata.pop("hook_name", "")
        layer = metadata.pop("layer", -1)
        site = Site(layer=layer, reads=metadata.pop("reads", hook), writes=metadata.pop("writes", hook))
        (d_in, n_features), d_out = state["W_enc"].shape, state["W_dec"].size(1)
        dictionary = Dictionary(d_in, d_out, n_features, "W_skip" in state).to(state["W_enc"].dtype)
        try:
            dictionary.load_state_dict(state)
        except RuntimeError as error:
            raise DictionaryError(f"{folder / WEIGHTS_FILE} does not hold what {CONFIG_FILE} says: {error}") from None
        return cls(dictionary, site, metadata)
