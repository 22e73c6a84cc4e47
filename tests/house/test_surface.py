"""The signatures of what a user holds: every option has a name and a type, for editors, type checkers and help()."""

import inspect
import pydoc
import typing
from pathlib import Path

import pytest

import pellucid

HELD = [name for name in pellucid.__all__ if isinstance(getattr(pellucid, name), type)]
CALLED = [name for name in pellucid.__all__ if inspect.isfunction(getattr(pellucid, name))]


def public_methods(kind):
    """The public methods of a class, inherited ones of this package too, and its constructor."""
    for name, value in inspect.getmembers(kind):
        if inspect.isfunction(value) and value.__module__.startswith("pellucid") and not name.startswith("_"):
            yield f"{kind.__name__}.{name}", value
    if inspect.isfunction(kind.__init__):
        yield f"{kind.__name__}.__init__", kind.__init__


def surface():
    for name in CALLED:
        yield name, getattr(pellucid, name)
    for name in HELD:
        yield from public_methods(getattr(pellucid, name))
    yield "show", pellucid.show.__wrapped__


@pytest.mark.parametrize(("name", "function"), [pytest.param(*pair, id=pair[0]) for pair in surface()])
def test_every_option_has_a_name_and_a_type(name, function):
    hints = typing.get_type_hints(function)
    for parameter in list(inspect.signature(function).parameters.values()):
        if parameter.name == "self":
            continue
        assert parameter.name in hints or parameter.default is not parameter.empty, f"{name}: {parameter.name}"
        if parameter.kind is parameter.VAR_KEYWORD:
            options = hints[parameter.name]
            assert typing.get_origin(options) is typing.Unpack, f"{name}: **{parameter.name}"
            assert typing.is_typeddict(typing.get_args(options)[0]), f"{name}: **{parameter.name}"


def test_what_a_user_holds_can_be_imported():
    assert {"LanguageModel", "Predictor", "Trace", "Circuits", "Head", "Run", "Recipe", "Architecture"} <= {*HELD}
    assert {"load", "load_predictor", "train", "train_predictor", "convert"} <= {*CALLED}


def test_each_kind_of_model_has_its_own_function():
    returned = {name: typing.get_type_hints(getattr(pellucid, name))["return"] for name in CALLED}
    assert returned["load"] is pellucid.LanguageModel
    assert returned["load_predictor"] is pellucid.Predictor


@pytest.mark.parametrize("name", ["LanguageModel", "Predictor", "Trace", "Circuits", "Head"])
def test_every_public_method_is_described(name):
    for full, method in public_methods(getattr(pellucid, name)):
        assert full.endswith("__init__") or inspect.getdoc(method), full


def test_each_kind_of_run_has_options_and_a_result_of_its_own():
    """`typed_surface.py` asserts the same of calls, which `make types` checks."""
    functions = (pellucid.train, pellucid.train_predictor)
    results = [str(typing.get_type_hints(function)["return"]).rpartition(".")[2] for function in functions]
    assert results == ["Recipe]", "PredictorRecipe]"]
    for_train, for_predictors = ({*inspect.signature(function).parameters} for function in functions)
    assert for_predictors - for_train == {"kind"}
    assert for_train - for_predictors == {"from_model", "revision", "preset", "recipe", "mix", "explain"}


def test_help_names_the_options():
    for_load = pydoc.render_doc(pellucid.load, renderer=pydoc.plaintext)
    for_train = pydoc.render_doc(pellucid.train, renderer=pydoc.plaintext)
    for_model = pydoc.render_doc(pellucid.LanguageModel, renderer=pydoc.plaintext)
    for_package = pydoc.render_doc(pellucid, renderer=pydoc.plaintext)
    assert "-> pellucid.language_model.LanguageModel" in for_load
    assert "minutes: float | None = None" in for_train
    assert "pellucid.generate.text.GenerateOptions" in for_model
    assert "corrupt_source" in for_model
    assert "load_predictor" in for_package


def test_the_types_are_shipped():
    assert (Path(pellucid.__file__).parent / "py.typed").exists()
