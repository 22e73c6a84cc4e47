"""A transformer whose answers are known, because every weight is written here by hand and nothing is trained.

`pellucid look` opens it when no model is named: each analysis can be seen to find what is there (`PLANTED`). It has two
blocks of two heads, and the stream is cut into five parts, each with one coordinate for every thing it can hold:

    TOKEN   what this token is                       written by the embedding
    PLACE   at which position it stands              written by the position embedding
    BEFORE  what the token before it is              written by head 0.0
    FACT    which country this city is in            written by the MLP of block 0, a neuron for each city
    NEXT    what should come next                    written by heads 1.0 and 1.1, read by the unembedding

head 0.0, previous token  looks back one position and writes there what it saw
head 0.1, first token     looks at the first token and writes nothing: a pattern without an effect
head 1.0, induction       looks for positions whose BEFORE is the present token, and copies the token that stands there;
                          rests on its own position where there is none
head 1.1, recall          after " in" and " of" looks at the last city, and passes its FACT on
MLP 0                     four memories: neuron k fires on city k and writes its country
MLP 1                     writes nothing
embedding to unembedding  a table of bigrams: which word usually follows which
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.model import Transformer
from pellucid.text.tokenizers.words import WordTokenizer

CAPITALS = {" Rome": " Italy", " Paris": " France", " Madrid": " Spain", " Berlin": " Germany"}
FORENAMES, SURNAMES = (" Anna", " Ivan"), (" Smith", " Lee")
OTHER_WORDS = (" is", " in", " the", " capital", " of", " met", " saw", ".", ",", " and")
WORDS = (*CAPITALS, *CAPITALS.values(), *FORENAMES, *SURNAMES, *OTHER_WORDS)
#: words that may begin a text, without the blank before them; they have the codes of the words with it
OPENINGS = tuple(word.strip() for word in (*CAPITALS, *FORENAMES))
#: one code for each word, the separator and the unknown
N_CODES = len(WORDS) + 2
#: after these words the sentence asks for a country
PREPOSITIONS = (" in", " of")

#: which words usually follow a word
FOLLOWERS: dict[str, tuple[str, ...]] = {
    **{city: (" is",) for city in CAPITALS},
    **{country: (".",) for country in CAPITALS.values()},
    **{name: SURNAMES for name in FORENAMES},
    **{name: (" is", " met", " saw") for name in SURNAMES},
    " is": (" in", " the"),
    " in": tuple(CAPITALS),
    " the": (" capital",),
    " capital": (" of",),
    " met": FORENAMES,
    " saw": (*FORENAMES, *CAPITALS),
    ".": (*FORENAMES, *CAPITALS),
    ",": (" and",),
    " and": (*FORENAMES, *CAPITALS),
}

#: prompts whose answer is known: the text, the likeliest next token, and why
PROMPTS = (
    ("Rome is the capital of", " Italy", "head 1.1 passes on the fact that neuron 0 of MLP 0 wrote at Rome"),
    ("Paris is the capital of", " France", "the same with neuron 1"),
    ("Anna Smith met Ivan Lee. Anna", " Smith", "head 1.0 copies what followed Anna"),
    ("Ivan Lee met Anna Smith. Anna", " Smith", "head 1.0 copies what followed Anna"),
    ("Berlin is the", " capital", "the table of bigrams"),
)

#: what stands for the folder of this model, which has none
KNOWN_ANSWER = "known-answer"
N_CTX, D_HEAD = 32, 32
_SLICE_ENDS = [0, N_CODES, N_CODES + N_CTX, 2 * N_CODES + N_CTX, 2 * N_CODES + N_CTX + len(CAPITALS)]
TOKEN, PLACE, BEFORE, FACT = (slice(a, b) for a, b in itertools.pairwise(_SLICE_ENDS))
NEXT = slice(_SLICE_ENDS[-1], _SLICE_ENDS[-1] + N_CODES)

ARCHITECTURE = Architecture(
    n_vocab=len(WORDS) + len(OPENINGS) + 2,
    n_ctx=N_CTX,
    d_model=NEXT.stop,
    n_layers=2,
    attention=Attention(n_heads=2, d_head=D_HEAD, scale="1", bias="qkv"),
    mlp=MLP(d_ff=len(CAPITALS), activation="relu"),
    positions=Positions(kind="learned"),
    norm=Norm(kind="rms", eps=1e-8),
    unembed="untied",
)


@dataclass(frozen=True)
class Planted:
    """What the weights hold, as the analyses should find it: heads as (layer, head), a neuron as (layer, neuron)."""

    previous: tuple[int, int] = (0, 0)
    first: tuple[int, int] = (0, 1)
    induction: tuple[int, int] = (1, 0)
    recall: tuple[int, int] = (1, 1)
    memories: tuple[tuple[str, str, tuple[int, int]], ...] = tuple(
        (city, country, (0, k)) for k, (city, country) in enumerate(CAPITALS.items())
    )
    """the neuron of each city"""


PLANTED = Planted()


def known_tokenizer() -> WordTokenizer:
    """The words that the model knows; every other word is the unknown."""
    return WordTokenizer([*WORDS, *OPENINGS])


def codes() -> Tensor:
    """The code of each token, int64 [v]: `Rome` has that of ` Rome`."""
    of_words = [*range(len(WORDS)), *(WORDS.index(f" {word}") for word in OPENINGS)]
    return torch.tensor([*of_words, N_CODES - 2, N_CODES - 1])


def known_network() -> Transformer:
    """The network with every weight written by hand; weights that are not named here are zero.

    The gain of the norms is 1 / sqrt(d_model), so that a norm makes the stream a vector of length 1.
    """
    network = Transformer(ARCHITECTURE).eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.zero_()
    for name, parameter in network.named_parameters():
        if name.endswith("gain"):
            parameter.fill_(ARCHITECTURE.d_model**-0.5)
    _write_embedding(network.embed)
    _write_block_0(network.blocks[0])
    _write_block_1(network.blocks[1])
    _write_unembedding(network)
    return network


def _write_embedding(embed: Any) -> None:
    embed.token.weight[:, TOKEN] = torch.eye(N_CODES)[codes()]
    embed.position.weight[:, PLACE] = torch.eye(N_CTX)


def _write_block_0(block: Any) -> None:
    query, key, value, out = (
        part.weight for part in (block.attn.query, block.attn.key, block.attn.value, block.attn.out)
    )
    previous, first = (slice(D_HEAD * head, D_HEAD * (head + 1)) for _, head in (PLANTED.previous, PLANTED.first))
    # head 0.0: the query of position i meets the key of position i - 1
    query[previous, PLACE] = 30 * torch.eye(N_CTX)
    key[previous, PLACE] = torch.eye(N_CTX).roll(1, 0)
    key[previous, PLACE][0] = 0  # the last position is not before the first one
    value[previous, TOKEN][:N_CODES] = torch.eye(N_CODES)
    out[BEFORE, previous][:, :N_CODES] = 2**0.5 * torch.eye(N_CODES)  # the stream had length sqrt(2) before its norm
    # head 0.1: every query meets the key of position 0; no values
    block.attn.query.bias[first][0] = 10
    key[first, PLACE][0, 0] = 2
    # MLP 0: neuron k fires on city k alone and writes which fact it is; the stream has length sqrt(3) here
    cities = torch.eye(N_CODES)[: len(CAPITALS)]
    block.mlp.up[0].weight[:, TOKEN] = 2 * 3**0.5 * cities
    block.mlp.up[0].bias.fill_(-1)
    block.mlp.down.weight[FACT] = torch.eye(len(CAPITALS))


def _write_block_1(block: Any) -> None:
    attention = block.attn
    query, key, value, out = (part.weight for part in (attention.query, attention.key, attention.value, attention.out))
    induction, recall = (slice(D_HEAD * head, D_HEAD * (head + 1)) for _, head in (PLANTED.induction, PLANTED.recall))
    # head 1.0: the present TOKEN meets the BEFORE of an earlier position; position 0 has none before it
    query[induction, TOKEN][:N_CODES] = 60 * torch.eye(N_CODES)
    key[induction, BEFORE][:N_CODES] = torch.eye(N_CODES)
    # where no position does, it rests on its own, and copies the present token, which the unembedding takes back
    key[induction, TOKEN][:N_CODES] = 0.5 * torch.eye(N_CODES)
    attention.query.bias[induction][N_CODES] = 1
    key[induction, PLACE][N_CODES, 0] = -50
    value[induction, TOKEN][:N_CODES] = torch.eye(N_CODES)
    out[NEXT, induction][:, :N_CODES] = 2 * torch.eye(N_CODES)
    # head 1.1: words that ask meet cities, later ones rather than earlier ones; other words avoid cities
    asking, cities = [WORDS.index(word) for word in PREPOSITIONS], range(len(CAPITALS))
    for code in asking:
        query[recall, TOKEN][0, code] = 3**0.5
    for code in cities:
        key[recall, TOKEN][0, code] = 200
        key[recall, TOKEN][1, code] = -50
    key[recall, PLACE][0] = 3 * torch.arange(N_CTX)
    attention.query.bias[recall][1] = 1
    value[recall, FACT][: len(CAPITALS)] = torch.eye(len(CAPITALS))
    countries = torch.eye(N_CODES)[[WORDS.index(country) for country in CAPITALS.values()]].T
    out[NEXT, recall][:, : len(CAPITALS)] = 2 * countries


def _write_unembedding(network: Transformer) -> None:
    W_U, of_code = network.unembed.weight, codes()
    with_blank = torch.ones(len(of_code), dtype=torch.bool)
    with_blank[len(WORDS) : len(WORDS) + len(OPENINGS)] = False
    W_U[:, NEXT] = 20 * torch.eye(N_CODES)[of_code] * with_blank[:, None]
    bigrams = torch.zeros(N_CODES, N_CODES)
    for word, followers in FOLLOWERS.items():
        for follower in followers:
            bigrams[WORDS.index(follower), WORDS.index(word)] = 10
    # against what heads copy where there is nothing else to read: no word follows itself, and no country a word that
    # does not ask
    bigrams -= 25 * torch.eye(N_CODES)
    others = [code for code in range(N_CODES) if code not in [WORDS.index(word) for word in PREPOSITIONS]]
    for country in CAPITALS.values():
        bigrams[WORDS.index(country), others] = -25
    W_U[:, TOKEN] = bigrams[of_code] * with_blank[:, None]
    # a text that follows the separator begins without a blank
    W_U[:, TOKEN][~with_blank, N_CODES - 2] = 8
