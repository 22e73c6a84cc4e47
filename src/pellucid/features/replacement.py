"""The local replacement model of one pass: transcoders and errors in the place of the MLPs, all else frozen.

Attention patterns and the scales of norms have the values of the pass. Each MLP's output is the sum of its features'
decoder rows, b_dec (and the skip), and an error, which is the difference to what the MLP computed. So it gives exactly
the model's logits, and each feature's pre-activation and each logit is an affine function of these sources:

    the embeddings of tokens, positions, segments and n-grams, an encoder's output, the features, the errors

(Ameisen et al. 2025, "Circuit Tracing", section 3.2; Dunefsky et al. 2024.) What is inside an MLP is replaced as a
whole, a mixture of experts too, and a norm between an MLP and the stream.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.architecture import Architecture
from pellucid.features.dictionary import Dictionary, DictionaryError, SavedDictionary, Site, transcoder_sites
from pellucid.lens.analysis.readout import readout_of
from pellucid.lens.core.forward import ForwardPass, frozen_network
from pellucid.lens.core.inputs import InputError, Inputs
from pellucid.lens.core.recording import Recording
from pellucid.model import Recorder
from pellucid.model.tap import Edit
from pellucid.tensor_names import EMBEDDINGS, names
from pellucid.text_model import Model

#: the source that is an encoder's output
ENCODED = "source"


def transcoders_by_layer(a: Architecture, dictionaries: Sequence[SavedDictionary]) -> dict[int, Dictionary]:
    """The transcoders of a model by layer. Raises DictionaryError for dictionaries that are none, or do not fit."""
    if not dictionaries:
        raise DictionaryError("no dictionary was given: a graph needs a transcoder of at least one layer")
    by_layer: dict[int, Dictionary] = {}
    for saved in dictionaries:
        site, dictionary = saved.site, saved.dictionary
        if site.kind != "transcoder":
            raise DictionaryError(f"the dictionary of {site.reads} is an autoencoder: a graph needs transcoders")
        if not 0 <= site.layer < a.n_layers:
            raise DictionaryError(f"a dictionary is of layer {site.layer}: this model has {a.n_layers}, from 0")
        if site != (expected := transcoder_sites(a)[site.layer]):
            raise DictionaryError(
                f"the dictionary of layer {site.layer} reads {site.reads} and writes {site.writes}: this model's MLP "
                f"reads {expected.reads} and writes {expected.writes}"
            )
        widths = (dictionary.W_enc.size(0), dictionary.W_dec.size(1))
        if widths != (a.d_model, a.d_model):
            raise DictionaryError(f"the dictionary of layer {site.layer} has widths {widths}: expected {a.d_model}")
        if site.layer in by_layer:
            raise DictionaryError(f"two dictionaries are of layer {site.layer}: give one for each layer")
        by_layer[site.layer] = dictionary
    return dict(sorted(by_layer.items()))


class ReplacementModel:
    """The model of one text, made linear between its features.

    recording   the pass whose patterns and scales are frozen
    sources     the values of what is summed, by name [1, pos, width]; of an MLP, without b_dec and skip
    reads       what each layer's MLP read [1, pos, d_model]
    features    of each layer with a transcoder: activations [pos, feature], 0 where a feature is not active
    active      True where a feature is active [pos, feature]
    errors      of each layer: what its MLP wrote beyond its dictionary [pos, d_model]
    """

    def __init__(self, recording: Recording, dictionaries: Mapping[int, Dictionary]):
        a, t = recording.architecture, recording
        self.recording, self.sites = recording, transcoder_sites(a)
        self.dictionaries = {layer: cast_dictionary(d, t[self.sites[layer].reads]) for layer, d in dictionaries.items()}
        self.frozen = {name: t[name] for name in names(a) if is_frozen(name)}
        self.reads = [t[site.reads] for site in self.sites]
        self.features: dict[int, Tensor] = {}
        self.active: dict[int, Tensor] = {}
        self.errors: list[Tensor] = []
        self.sources = {name: t[name] for name in EMBEDDINGS if name in names(a)}
        for site, x in zip(self.sites, self.reads, strict=True):
            written = t[site.writes]
            self.sources[site.writes] = written - self._constant(site.layer, x)
            dictionary = self.dictionaries.get(site.layer)
            if dictionary is not None:
                h = dictionary.pre_activations(x[0]).detach()
                self.active[site.layer] = h > dictionary.threshold
                self.features[site.layer] = dictionary.encode(x[0]).detach()
            self.errors.append((written - (0 if dictionary is None else dictionary(x).detach()))[0])
        encoded = t.passes[""].encoded
        if encoded is not None:
            self.sources[ENCODED] = encoded
        self.readout = readout_of(t)

    @classmethod
    def of_text(cls, model: Model, inputs: Inputs, dictionaries: Sequence[SavedDictionary]) -> Self:
        """The replacement model of one text. Raises InputError for several, and DictionaryError."""
        if len(inputs.tokens) != 1:
            raise InputError(f"a graph is of one text, and {len(inputs.tokens)} were given")
        a = model.architecture
        by_layer, sites = transcoders_by_layer(a, dictionaries), transcoder_sites(a)
        recorded = [name for name in names(a) if is_frozen(name) or name in EMBEDDINGS]
        recorded += [name for site in sites for name in (site.reads, site.writes)]
        return cls(Recording(model, inputs, recorded), by_layer)

    def _constant(self, layer: int, x: Tensor) -> Tensor:
        """What a layer adds to the stream whatever its features do: b_dec and the skip of what the MLP reads."""
        dictionary = self.dictionaries.get(layer)
        if dictionary is None:
            return torch.zeros_like(x)
        skip = 0 if dictionary.W_skip is None else x @ dictionary.W_skip.detach().T
        return dictionary.b_dec.detach() + skip

    def outputs(self, sources: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """What each MLP and the readout read where the sources have these values [1, pos, d_model]."""
        recorder = Recorder([site.reads for site in self.sites], grad=True)
        replaced = self.frozen | {name: sources[name] for name in EMBEDDINGS if name in sources}
        edits: dict[str, Edit] = {name: partial(replace_tensor, value) for name, value in replaced.items()}
        for site in self.sites:

            def mlp_out(x: Tensor, site: Site = site) -> Tensor:
                return sources[site.writes] + self._constant(site.layer, recorder.values[site.reads])

            edits[site.writes] = mlp_out
        recorder.edits = {name: (edit,) for name, edit in edits.items()}
        t = self.recording
        read_out = ForwardPass(t.module(""), t.inputs, sources.get(ENCODED)).whole(recorder)
        return [recorder.values[site.reads] for site in self.sites], read_out

    def at_zero(self) -> tuple[list[Tensor], Tensor]:
        """What each MLP and the readout read where every source is 0: what biases alone make."""
        with frozen_network(self.recording.network):
            return self.outputs({name: torch.zeros_like(x) for name, x in self.sources.items()})

    def with_gradients(self) -> tuple[list[Tensor], Tensor, dict[str, Tensor]]:
        """What each MLP and the readout read, in a graph of autograd, and its leaves, the sources."""
        with frozen_network(self.recording.network, grad=True):
            leaves = {name: x.clone().requires_grad_() for name, x in self.sources.items()}
            return *self.outputs(leaves), leaves

    def logit_directions(
        self, tokens: Sequence[int], position: int, subtract_mean: bool
    ) -> tuple[Float[Tensor, "logit m"], Float[Tensor, " logit"]]:
        """The directions at what the readout reads along which logits are read, and what biases add to each.

        The activation of a bert readout is frozen at the factor by which it multiplied its input.
        """
        W, b = self.readout.W_U, self.readout.b_U
        b = W.new_zeros(len(W)) if b is None else b
        W_U, b_U = (W - W.mean(0), b - b.mean()) if subtract_mean else (W, b)
        directions, biases = [], []
        for token in tokens:
            w = W_U[token].expand(*self.recording.ids.shape, -1)
            directions.append(self.readout.back(w)[0, position])
            added = [bias[0, position] for bias in self.readout.biases(w).values()]
            biases.append(b_U[token] + sum(added))
        return torch.stack(directions), torch.stack(biases)

    def logits(
        self, read_out: Tensor, tokens: Sequence[int], position: int, subtract_mean: bool
    ) -> Float[Tensor, " logit"]:
        """Logits before the cap, from what the readout reads, with its nonlinear functions live."""
        with frozen_network(self.recording.network):
            every = self.recording.module("unembed").before_cap(read_out[:, position])[0]
        return every[list(tokens)] - (every.mean() if subtract_mean else 0)


def is_frozen(name: str) -> bool:
    """Whether a tensor of the decoder is frozen: patterns, its own and of cross-attention, and scales of norms."""
    return name.endswith((".pattern", ".scale")) and not name.startswith("encoder.")


def slopes(
    output: Tensor, leaves: Mapping[str, Tensor], positions: Tensor, directions: Float[Tensor, "target m"]
) -> dict[str, Tensor]:
    """d (output at a position . direction) / d leaf of several targets [target, pos, width], by name."""
    weights = output.new_zeros(len(positions), *output.shape)
    weights[torch.arange(len(positions)), 0, positions] = directions.to(output.dtype)
    gradients = torch.autograd.grad(
        output, list(leaves.values()), weights, retain_graph=True, allow_unused=True, is_grads_batched=True
    )
    return {
        name: x.new_zeros(len(positions), *x.shape[1:]) if gradient is None else gradient[:, 0]
        for (name, x), gradient in zip(leaves.items(), gradients, strict=True)
    }


def cast_dictionary(dictionary: Dictionary, x: Tensor) -> Dictionary:
    """The dictionary in the precision and on the device of what it reads; a copy where these differ."""
    if dictionary.W_enc.dtype == x.dtype and dictionary.W_enc.device == x.device:
        return dictionary
    copied = Dictionary(
        dictionary.W_enc.size(0), dictionary.W_dec.size(1), dictionary.n_features, dictionary.W_skip is not None
    )
    copied.load_state_dict(dictionary.state_dict())
    return copied.to(x)


def replace_tensor(value: Tensor, x: Tensor) -> Tensor:
    return value.expand_as(x)
