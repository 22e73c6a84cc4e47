"""The page Read on models of other projects: every step of every family computes its tensor from the ones it names."""

import numpy as np
import pytest
import torch
from random_models import TINY, model_of_theirs
from theirs import as_ours

from pellucid.language_model import LanguageModel
from pellucid.look.reading import PREAMBLE, column
from pellucid.look.steps import model_steps
from pellucid.tensor_names import names
from pellucid.text.ids import IdTokenizer

#: the ones that are tested at once
FIRST = ("gpt2", "mixtral")


@pytest.mark.parametrize("family", [pytest.param(f, marks=[] if f in FIRST else [pytest.mark.slow]) for f in TINY])
def test_the_steps_of_a_family_are_its_own(family):
    theirs, config = model_of_theirs(family, next(iter(TINY[family][2])))
    network = as_ours(theirs, config)[0].float().eval()
    a = network.architecture
    model = LanguageModel(network, IdTokenizer(a.n_vocab), {})
    source = {"source": [[4, 5, 6]]} if a.encoder is not None else {}
    trace = model.trace([[1, 2, 3, 2, 5]], **source)
    steps = model_steps(a)
    assert {step.name for step in steps} - {"probs"} == {*names(a)}
    for step in steps:
        scope = {"model": model, "trace": trace}
        exec(PREAMBLE + step.code, scope)
        got, want = torch.as_tensor(np.asarray(scope["result"])), trace[step.name]
        torch.testing.assert_close(got.to(want.dtype), want, rtol=1e-3, atol=1e-4, msg=f"{family} {step.name}")
    assert column(a)["parts"]
