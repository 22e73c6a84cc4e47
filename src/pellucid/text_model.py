"""A network with the tokenizer whose ids it reads: the first argument of everything that reads or generates text."""

from dataclasses import dataclass, field
from typing import Any

from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.text.chat_template import ChatTemplate
from pellucid.text.ids import IdTokenizer
from pellucid.text.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Model:
    """A network, its tokenizer, and where both come from.

    provenance     the folder of the weights, the step of a run, and what it was opened with
    chat_template  turns a conversation into what the network reads, where it was trained on conversations
    """

    network: Transformer
    tokenizer: Tokenizer
    provenance: dict[str, Any] = field(default_factory=dict)
    chat_template: ChatTemplate | None = None

    @property
    def architecture(self) -> Architecture:
        return self.network.architecture


def of_ids(network: Transformer) -> Model:
    """A model without a tokenizer: its texts are token ids in digits, such as "17 4 250"."""
    return Model(network, IdTokenizer(network.architecture.n_vocab))
