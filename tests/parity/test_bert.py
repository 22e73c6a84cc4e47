"""BERT of transformers and ours are one function, with segments and padding; so are the streams of ELECTRA.

The logits over the options of its configuration are in test_every_family.
"""

import pytest
import torch
from theirs import TOLERANCE, as_ours, both, draw, farthest, numpy_weights, perturb
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    ElectraConfig,
    ElectraForPreTraining,
    ElectraModel,
)

from pellucid.hub import architecture_of, to_ours
from pellucid.hub.open import open_folder, read_network
from pellucid.model import Recorder, Transformer
from pellucid.model.weights import state_of
from pellucid.parameter_counts import count_parameters
from pellucid.presets import preset
from pellucid.reference import transformer as reference
from pellucid.reference.tap import TensorRecorder

SIZES = {"vocab_size": 13, "max_position_embeddings": 9, "hidden_size": 12, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 3, "intermediate_size": 20}


def theirs(kind=BertForMaskedLM):
    config = BertConfig(**SIZES)
    return perturb(kind(config)), config.to_dict()


def reading(a, seed=0):
    """Segments, and a mask that hides what pads each row on the right."""
    segments = draw(a, seed=seed + 1) % a.n_segments
    kept = torch.arange(a.n_ctx) < torch.tensor([a.n_ctx, 4, 1])[:, None]
    return segments, kept


@pytest.mark.item("S0-ref", "S3-2-b", "S3-7-a", "S4-att-l", "X-BERT")
def test_the_stream_is_that_of_the_bare_model():
    """BertModel's last_hidden_state and hidden_states are the streams behind our blocks."""
    model, config = theirs()
    bare = BertModel(model.config).double().eval()
    # the pooler is not part of the masked language model
    assert bare.load_state_dict(model.bert.state_dict(), strict=False).missing_keys == [
        "pooler.dense.weight",
        "pooler.dense.bias",
    ]
    network, _ = as_ours(model, config)
    a = network.architecture
    tokens, (segments, kept) = draw(a), reading(a)
    mask = kept[:, None, :].expand(-1, a.n_ctx, -1)
    names = ["embed_norm", *(f"blocks.{i}.resid_post" for i in range(a.n_layers))]
    recorder, tap = Recorder(names), TensorRecorder()
    network(tokens, segments=segments, mask=mask, tap=recorder)
    reference.forward(a, numpy_weights(network), tokens.numpy(), segments=segments.numpy(), mask=mask.numpy(), tap=tap)
    found = bare(tokens, token_type_ids=segments, attention_mask=kept.long(), output_hidden_states=True)
    assert torch.equal(found.hidden_states[-1], found.last_hidden_state)
    for name, expected in zip(names, found.hidden_states, strict=True):
        assert farthest(recorder.values[name], expected) <= TOLERANCE, name
        assert farthest(torch.from_numpy(tap.values[name]), expected) <= TOLERANCE, name


def test_the_pooler_and_the_next_sentence_head_are_left_out():
    model, config = theirs(BertForPreTraining)
    network, _ = as_ours(model, config)
    tokens, (segments, _) = draw(network.architecture), reading(network.architecture)
    expected = model(tokens, token_type_ids=segments).prediction_logits
    for logits in both(network, tokens, segments=segments).values():
        assert farthest(logits, expected) <= TOLERANCE


@pytest.mark.item("X-PARAMS")
def test_parameters_of_bert_base():
    """109,482,240 counts BertModel: no readout, and a pooler (d^2 + d), which we do not have."""
    with torch.device("meta"):
        bare = BertModel(BertConfig())
        ours = Transformer(preset("bert"))
    assert sum(p.numel() for p in bare.parameters()) == 109_482_240
    assert architecture_of(BertConfig().to_dict()) == preset("bert").with_fields({"mlp.d_ff": 3072})
    counts = count_parameters(preset("bert"))
    pooler = 768 * 768 + 768
    assert counts["total"] - counts["unembed"] + pooler == 109_482_240
    assert sum(p.numel() for p in state_of(ours).values()) == counts["total"] == 109_514_298


def test_old_spellings_are_read():
    """The files of 2018 call a norm's gain gamma and its bias beta, and hold one bias of the readout."""
    model, config = theirs()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in model.state_dict().items()
        if name != "cls.predictions.decoder.bias"
    }
    old["bert.embeddings.position_ids"] = torch.arange(9)
    made, expected = to_ours(old, config), to_ours(model.state_dict(), config)
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("kind", "width"), [(ElectraForPreTraining, 5), (ElectraForPreTraining, 12), (ElectraModel, 17)]
)
def test_the_stream_of_electra(kind, width, tmp_path):
    """The discriminator's stream, from its folder: without its head, which gives each token one number.

    The small one's embeddings are narrower than its stream, to which the norm of their sum is projected.
    """
    model = perturb(kind(ElectraConfig(**SIZES, embedding_size=width)))
    model.save_pretrained(tmp_path)
    folder = open_folder(tmp_path)
    assert folder.architecture.readout == "none"
    assert folder.architecture.embed_projection == ("tokens" if width == 12 else "sum")
    network = read_network(folder.architecture, folder.ours(), torch.float64)
    tokens, (segments, kept) = draw(folder.architecture), reading(folder.architecture)
    mask = kept[:, None, :].expand(-1, folder.architecture.n_ctx, -1)
    with torch.no_grad():
        found = model(tokens, token_type_ids=segments, attention_mask=kept.long(), output_hidden_states=True)
        stream = network.hidden(tokens, segments=segments, mask=mask)
        assert farthest(stream, found.hidden_states[-1]) <= TOLERANCE
        recorder = Recorder(["blocks.0.resid_pre"])
        network.hidden(tokens, segments=segments, mask=mask, tap=recorder)
        assert farthest(recorder.values["blocks.0.resid_pre"], found.hidden_states[0]) <= TOLERANCE
        if kind is ElectraForPreTraining:  # what their head makes of our stream
            assert farthest(model.discriminator_predictions(stream), found.logits) <= TOLERANCE
