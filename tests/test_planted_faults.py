"""`verify` finds every planted fault, by the law that is about it, and names the tensor where it begins."""

from functools import cache

import pytest

from drawing import make_network
from pellucid.architecture import Architecture
from pellucid.model import Transformer
from pellucid.verify import verify
from planted import BASE, FAULTS, Fault
from running import with_encoder
from some_cases import one_in


def network_for(fault: Fault) -> Transformer:
    a = BASE.with_fields(fault.fields)
    return make_network(with_encoder(a) if fault.encoder else a)


@cache
def holds_unplanted(a: Architecture) -> bool:
    return verify(make_network(a)).holds


@pytest.mark.parametrize("name", one_in(8, FAULTS))
def test_a_planted_fault_is_found_where_it_is(name: str, monkeypatch: pytest.MonkeyPatch):
    fault = FAULTS[name]
    network = network_for(fault)
    assert holds_unplanted(network.architecture)
    fault.plant(network, monkeypatch)
    report = verify(network)
    assert report.exit_code == 1
    check = next(check for check in report.checks if check.law == fault.law)
    assert check.holds is False, report.text()
    assert check.first == fault.first
    assert fault.first in check.measured
    assert report.first == fault.first
    assert f"first tensor that differs: {fault.first}" in " ".join(report.text().split())


def test_thirty_faults_are_planted():
    assert len(FAULTS) >= 30
