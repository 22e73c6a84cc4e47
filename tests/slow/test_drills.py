"""A share of the faults that `make drills` does in full: kills, signals, flipped bits and cut files."""

import pytest
from tests.drills import drills


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_is_left_of_any_fault_can_be_continued(tmp_path):
    done = {drill.fault: drill.count for drill in drills(tmp_path, 0.01, n_steps=60)}
    assert sum(count for fault, count in done.items() if "kill" in fault) == 4
    assert len(done) == 14
