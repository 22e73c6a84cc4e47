"""A circuit of two steps, written by hand: its graph has these edges, of these sizes, and no others.

Token x fires feature A in MLP 0, which writes A. Attention of layer 1 brings A from where x stands to every later
position. Where the token is `end`, A fires feature B in MLP 1, which writes B, and the unembedding reads B as the
answer. Token y does the same by features of its own, to another answer.
"""

import pytest
import torch

from pellucid.architecture import MLP, Architecture, Attention, Norm, Positions
from pellucid.features.attribution_graph import attribution_graph
from pellucid.features.dictionary import Dictionary, SavedDictionary, transcoder_sites
from pellucid.model import Transformer
from pellucid.text.tokenizers.words import WordTokenizer
from pellucid.text_model import Model

WORDS = ("x", " y", " z", " end", " ax", " ay")
#: coordinates of the stream: one for each token, and what the features write
N_TOKENS = 8
A_X, A_Y, B_X, B_Y = range(N_TOKENS, N_TOKENS + 4)
ARCHITECTURE = Architecture(
    n_vocab=N_TOKENS,
    n_ctx=8,
    d_model=N_TOKENS + 4,
    n_layers=2,
    attention=Attention(n_heads=1, d_head=4, scale="1", bias="none"),
    mlp=MLP(d_ff=2, activation="relu"),
    positions=Positions(kind="none"),
    norm=Norm(kind="none"),
    unembed="untied",
)


def planted_model():
    """Zeros, but for the circuit; attention looks at all positions alike, since no query meets a key."""
    network = Transformer(ARCHITECTURE).double().eval().requires_grad_(False)
    for parameter in network.parameters():
        parameter.zero_()
    x, y, _, end, answer_x, answer_y = range(len(WORDS))
    network.embed.token.weight[:, :N_TOKENS] = torch.eye(N_TOKENS)
    first, second = network.blocks
    first.mlp.up[0].weight[[0, 1], [x, y]] = 2
    first.mlp.up[0].bias.fill_(-1)
    first.mlp.down.weight[[A_X, A_Y], [0, 1]] = 1
    second.attn.value.weight[[0, 1], [A_X, A_Y]] = 1
    second.attn.out.weight[[A_X, A_Y], [0, 1]] = 1
    second.mlp.up[0].weight[[0, 1], [A_X, A_Y]] = 6
    second.mlp.up[0].weight[:, end] = 1
    second.mlp.up[0].bias.fill_(-2)
    second.mlp.down.weight[[B_X, B_Y], [0, 1]] = 1
    network.unembed.weight[[answer_x, answer_y], [B_X, B_Y]] = 9
    return Model(network, WordTokenizer(list(WORDS)))


def neurons_as_transcoders(model, missing=()):
    """Every neuron of a relu MLP is a feature, so that no error is left; `missing` are (layer, index) to leave out."""
    saved = []
    for site in transcoder_sites(model.architecture):
        mlp = model.network.blocks[site.layer].mlp
        dictionary = Dictionary(ARCHITECTURE.d_model, ARCHITECTURE.d_model, ARCHITECTURE.d_ff).double()
        dictionary.load_state_dict(
            {
                "W_enc": mlp.up[0].weight.T,
                "b_enc": mlp.up[0].bias,
                "W_dec": mlp.down.weight.T,
                "b_dec": mlp.down.bias,
                "threshold": torch.zeros(ARCHITECTURE.d_ff, dtype=torch.float64),
            }
        )
        for layer, index in missing:
            dictionary.threshold[index] = torch.inf if layer == site.layer else dictionary.threshold[index]
        saved.append(SavedDictionary(dictionary, site, {}))
    return saved


def named_edges(graph):
    """The edges by the names of their ends, without those of 0."""
    targets, sources = graph.edges.nonzero(as_tuple=True)
    return {
        (str(graph.nodes[s]), str(graph.nodes[t])): float(graph.edges[t, s])
        for t, s in zip(targets.tolist(), sources.tolist(), strict=True)
    }


def planted_graph(text="x z end", **options):
    model = planted_model()
    return attribution_graph(model, text, neurons_as_transcoders(model, **options), subtract_mean=False, max_logits=1)


A, B = "feature 0.0 at 0 'x'", "feature 1.0 at 2 ' end'"
ANSWER = "logit of ' ax'"


def test_the_graph_is_the_planted_circuit():
    graph = planted_graph()
    # A = 2 - 1; a third of it is read at the end, and the whole of it stays where x is: B = 6 / 3 + 1 - 2
    assert named_edges(graph) == pytest.approx(
        {
            ("token at 0 'x'", A): 2,
            ("bias", A): -1,
            (A, "feature 1.0 at 0 'x'"): 12,
            ("bias", "feature 1.0 at 0 'x'"): -2,
            (A, "feature 1.0 at 1 ' z'"): 3,
            ("bias", "feature 1.0 at 1 ' z'"): -2,
            (A, B): 2,
            ("token at 2 ' end'", B): 1,
            ("bias", B): -2,
            (B, ANSWER): 9,
        }
    )
    assert all(float(error.abs().max()) == 0 for error in graph.replacement.errors)


def test_what_remains_of_it_are_its_two_steps():
    graph = planted_graph().prune()
    edges = {pair for pair in named_edges(graph) if "bias" not in pair}
    assert edges == {("token at 0 'x'", A), (A, B), ("token at 2 ' end'", B), (B, ANSWER)}
    assert graph.scores.replacement == graph.scores.completeness == 1
    assert "100 % of the influence on the prediction goes through features and tokens" in graph.explained


def test_the_other_answer_has_features_of_its_own():
    (logit,) = (graph := planted_graph(" y z end")).find("logit")
    assert graph.nodes[logit].text == " ay"
    assert {node.index for node in graph.nodes if node.kind == "feature"} == {1}


def test_a_step_that_no_feature_explains_is_an_error():
    graph = planted_graph(missing=[(0, 0)])
    edges = named_edges(graph)
    assert edges[("error 0 at 0 'x'", B)] == pytest.approx(2)
    assert not [pair for pair in edges if "token at 0 'x'" in pair]
    # two thirds of what B is the sum of are the error, and all influence goes through B
    assert graph.scores.error_share == pytest.approx(2 / 3)
    assert "the rest, 67 %, begins at errors and is not explained" in graph.explained


def test_setting_a_feature_does_in_the_model_what_the_graph_says():
    graph = planted_graph()
    (first,) = graph.find("feature", layer=0)
    doubled = graph.intervene(first, 2.0)
    assert [str(node) for node in doubled.targets][-2:] == [B, ANSWER]
    assert doubled.measured.tolist() == pytest.approx([12, 3, 2, 18])
    assert doubled.predicted.tolist() == pytest.approx([12, 3, 2, 18])
    assert doubled.correlation == pytest.approx(1)
    # without A, B would be -1, and is 0: the graph takes features to stay active, and says -18 where the model says -9
    without = graph.intervene(first, 0.0)
    assert without.of_logits() == [(" ax", pytest.approx(-18), pytest.approx(-9))]
    (second,) = graph.find("feature", layer=1, pos=2)
    assert graph.intervene(second, 0.0).of_logits() == [(" ax", pytest.approx(-9), pytest.approx(-9))]
