"""The page Read on models of other projects: every family has a step for each of its tensors."""

import pytest
from random_models import TINY, model_of_theirs
from theirs import as_ours

from pellucid.look.reading import column
from pellucid.tensor_names import names

#: the ones that are tested at once
FIRST = ("gpt2", "mixtral")


@pytest.mark.parametrize("family", [pytest.param(f, marks=[] if f in FIRST else [pytest.mark.slow]) for f in TINY])
def test_the_steps_of_a_family_are_its_own(family):
    a = as_ours(*model_of_theirs(family, next(iter(TINY[family][2]))))[0].architecture
    shown = [step["name"] for part in column(a)["parts"] for step in part["steps"]]
    assert sorted({*shown} - {"probs"}) == sorted(names(a))
