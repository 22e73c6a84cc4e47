"""Stop strings do not depend on how the text arrives, and nothing of them is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.generate.errors import GenerationError
from pellucid.generate.stopping import StopStrings

few_letters = st.text("abé", max_size=12)


def cut(text: str, stops: list[str]) -> str:
    """The definition: read letter by letter until some stop string is complete, and take the longest off."""
    for n in range(len(text) + 1):
        if ends := [stop for stop in stops if text[:n].endswith(stop)]:
            return text[: n - len(max(ends, key=len))]
    return text


@given(st.lists(few_letters, max_size=8), st.lists(st.text("abé", min_size=1, max_size=4), max_size=3, unique=True))
def test_any_pieces_give_the_text_up_to_the_first_stop_string(pieces, stops):
    matcher, shown = StopStrings(stops), []
    for piece in pieces:
        shown.append(matcher.push(piece))
        # nothing that was shown may begin a stop string that ends later: compare with all that may follow
        assert cut("".join(pieces), stops).startswith("".join(shown))
    shown.append(matcher.finish())
    assert "".join(shown) == cut("".join(pieces), stops)
    assert matcher.stopped == any(stop in "".join(pieces) for stop in stops)


@given(st.text("ab", max_size=10), st.text("ab", min_size=1, max_size=4))
def test_only_what_may_become_a_stop_string_is_held_back(text, stop):
    matcher = StopStrings([stop])
    shown = matcher.push(text)
    if not matcher.stopped:
        assert text == shown + matcher.held
        assert stop.startswith(matcher.held)
        assert not any(stop.startswith(text[n:]) for n in range(len(shown)))


def test_overlapping_stop_strings_by_hand():
    assert cut("xabcd", ["bc", "abcd"]) == "xa"
    matcher = StopStrings(["abcd", "bc"])
    assert [matcher.push(c) for c in "xabcd"] == ["x", "", "", "a", ""]
    assert matcher.stopped
    restarted = StopStrings(["aab"])
    assert restarted.push("aaa") == "a"
    assert restarted.push("b") == ""
    assert restarted.stopped


@pytest.mark.parametrize("stops", [[""], ["x", ""], [3]])
def test_stop_strings_of_nothing_are_refused(stops):
    with pytest.raises(GenerationError, match="at least one character"):
        StopStrings(stops)
