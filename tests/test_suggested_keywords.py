"""Functions of Python that everybody calls answer an unknown keyword with the nearest right one."""

import pytest

import pellucid
from pellucid.language_model import known_answer
from pellucid.option_values import suggest_keywords


@suggest_keywords(["temperature"])
def draw(text: str, *, seed: int = 0, **options: float) -> tuple[str, int, dict[str, float]]:
    """A text, a seed and options."""
    return text, seed, options


def test_known_keywords_pass_through():
    assert draw("a", seed=2, temperature=0.5) == ("a", 2, {"temperature": 0.5})
    assert draw.__doc__ == "A text, a seed and options."


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [("sed", "did you mean 'seed'"), ("tempe", "'temperature'"), ("x", "it takes text, seed, temp")],
)
def test_an_unknown_keyword_names_the_nearest(keyword, hint):
    with pytest.raises(TypeError, match=rf"draw\(\) has no argument '{keyword}': .*{hint}"):
        draw("a", **{keyword: 1})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model: model.generate("a", max_token=3),
            r"generate\(\) has no argument 'max_token': did you mean 'max_t",
        ),
        (lambda model: model.generate_many("a", temprature=1), "did you mean 'temperature'"),
        (lambda model: model.stream("a", sed=1), "did you mean 'seed'"),
        (lambda model: model.score("a", strid=1), "did you mean 'stride'"),
        (lambda model: model.trace("a", keeps="*"), "did you mean 'keep'"),
        (lambda model: pellucid.train("a.txt", minuts=1), "did you mean 'minutes'"),
        (lambda model: pellucid.load("a", checkpoints="1"), "did you mean 'checkpoint'"),
        (lambda model: pellucid.convert("a", "b", weight="q8_0"), "did you mean 'weights'"),
    ],
)
def test_the_functions_that_everybody_calls(call, message):
    with pytest.raises(TypeError, match=message):
        call(known_answer())
