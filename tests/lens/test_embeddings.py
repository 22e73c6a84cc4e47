"""Neighbours, lengths, spectrum and plane of the tables of embeddings."""

import pytest
import torch
from hypothesis import given, settings

from drawing import architectures, difference, make_network
from pellucid.architecture import Architecture
from pellucid.lens import InputError
from pellucid.lens.weights.embeddings import Embeddings
from pellucid.text_model import of_ids

A = Architecture(n_vocab=11, n_ctx=8, d_model=8, n_layers=1).with_fields({"attention.n_heads": 2})


@settings(deadline=None, max_examples=15)
@given(architectures())
def test_neighbours_norms_and_spectrum(a):
    network = make_network(a)
    for of, table in (("embed", network.embed.token.weight), ("unembed", network.unembed.weight)):
        e = Embeddings(of_ids(network), of)
        assert e.table.data_ptr() == table.data_ptr()
        table = table.detach()
        cosine = torch.nn.functional.cosine_similarity(table, table[3:4], dim=1)
        distance = (table - table[3]).norm(dim=1)
        others = [i for i in range(a.n_vocab) if i != 3]
        assert e.neighbours(3, 2)[0][0] == str(max(others, key=lambda i: cosine[i]))
        assert abs(e.neighbours(3, 2)[0][1] - float(cosine[others].max())) <= 1e-10
        assert e.neighbours(3, 2, "distance")[0] == pytest.approx(
            (str(min(others, key=lambda i: distance[i])), float(distance[others].min()))
        )
        assert e.neighbours(3, 2, "product")[0][1] == pytest.approx(float((table @ table[3])[others].max()))
        assert len(e.neighbours(3, 99)) == a.n_vocab - 1
        assert difference(e.norms(), table.norm(dim=1)) <= 1e-12
        centred = table - table.mean(0)
        assert difference(e.spectrum(), torch.linalg.svdvals(centred)) <= 1e-10
        spread = e.plane(2).square().sum(0).sqrt()
        assert difference(spread, torch.linalg.svdvals(centred)[:2]) <= 1e-6


def test_positions_are_a_table_where_they_are_learned():
    assert Embeddings(of_ids(make_network(A)), "positions").table.shape == (8, 8)
    with pytest.raises(InputError, match="has embed, unembed"):
        Embeddings(of_ids(make_network(A.with_fields({"positions.kind": "alibi"}))), "positions")
    with pytest.raises(InputError, match="readout = none: this network has no table of the readout"):
        Embeddings(of_ids(make_network(A.with_fields({"readout": "none", "positions.kind": "alibi"}))), "unembed")
    with pytest.raises(InputError, match="by = 'angle'"):
        Embeddings(of_ids(make_network(A))).neighbours(0, by="angle")
    with pytest.raises(InputError, match="token 11: there are 11, numbered from 0"):
        Embeddings(of_ids(make_network(A))).neighbours(11)
    with pytest.raises(InputError, match="token -1: there are 8, numbered from 0"):
        Embeddings(of_ids(make_network(A)), "positions").neighbours(-1)
