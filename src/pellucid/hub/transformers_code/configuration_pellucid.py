"""The configuration of a model that Pellucid wrote, for transformers; it needs no other package.

First come the architecture's options, each with its formula, then the class that transformers' AutoConfig opens.
"""

from typing import Any

from transformers import PretrainedConfig

from pellucid.architecture import Architecture


class PellucidConfig(PretrainedConfig):
    """An architecture as a configuration of transformers. `architecture` holds every option, nested.

    decoder_start_token_id  the id that starts the targets of an encoder-decoder
    """

    model_type = "pellucid"
    keys_to_ignore_at_inference = ("past_key_values",)

    def __init__(
        self,
        architecture: dict[str, Any] | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        decoder_start_token_id: int | None = None,
        **kwargs: Any,
    ):
        # transformers creates a configuration without arguments to compare with the defaults
        smallest = Architecture(n_vocab=1, n_ctx=1, d_model=4, n_layers=0)
        a = smallest if architecture is None else Architecture.from_dict(architecture)
        self.architecture = a.to_dict()
        kwargs |= {"is_encoder_decoder": a.encoder is not None, "tie_word_embeddings": a.unembed == "tied"}
        super().__init__(**kwargs)
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        self.decoder_start_token_id = decoder_start_token_id

    @property
    def options(self) -> Architecture:
        """The architecture as an object."""
        return Architecture.from_dict(self.architecture)

    @property
    def vocab_size(self) -> int:
        return self.architecture["n_vocab"]

    @property
    def hidden_size(self) -> int:
        return self.architecture["d_model"]

    @property
    def num_hidden_layers(self) -> int:
        return self.architecture["n_layers"]

    @property
    def num_attention_heads(self) -> int:
        return self.options.n_heads

    @property
    def num_key_value_heads(self) -> int:
        return self.options.n_kv_heads

    @property
    def head_dim(self) -> int:
        return self.options.d_head

    @property
    def max_position_embeddings(self) -> int:
        return self.architecture["n_ctx"]
