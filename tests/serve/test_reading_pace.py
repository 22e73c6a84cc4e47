"""The length of pieces of prompts, on a machine whose times are made up."""

from typing import Any

import pytest

from pellucid.serve.reading_pace import FEWEST_PROMPT_TOKENS, ROUND_STEPS, ROUNDS_BETWEEN_STEPS, ReadingPace


def paced(pace: ReadingPace, step: float, for_each: float, rounds: int = 40, fixed: float = 0.0) -> list[int]:
    """The lengths of the pieces of some rounds; a piece adds `fixed` to a step's seconds, and each token `for_each`."""
    lengths = []
    for _ in range(rounds):
        if pace.is_step_due or not pace.step_seconds:
            pace.note_round(0, step)
        lengths.append(pace.length)
        pace.note_round(pace.length, step + fixed + for_each * pace.length)
    return lengths


def longest_piece(step: float, for_each: float, fixed: float = 0.0) -> Any:
    """Tokens that fill a round of ROUND_STEPS steps beside the step itself, to within one."""
    return pytest.approx(((ROUND_STEPS - 1) * step - fixed) / for_each, abs=1 + 1e-9)


def test_a_round_with_a_piece_takes_as_many_steps_as_it_may():
    pace = ReadingPace(256)
    assert pace.length == FEWEST_PROMPT_TOKENS
    assert paced(pace, step=0.05, for_each=0.001)[-1] == longest_piece(0.05, 0.001)
    assert paced(pace, step=0.03, for_each=0.0005, fixed=0.005)[-1] == longest_piece(0.03, 0.0005, fixed=0.005)
    # a pass of its own over the weights takes longer than a step
    assert paced(pace, step=0.01, for_each=0.001, fixed=0.02)[-1] == FEWEST_PROMPT_TOKENS
    assert paced(pace, step=9.0, for_each=0.001)[-1] == 256


def test_no_round_on_the_way_takes_longer_than_the_last():
    lengths = paced(ReadingPace(256), step=0.06, for_each=0.001)
    assert lengths == sorted(lengths)
    assert lengths[-1] == longest_piece(0.06, 0.001)


def test_pieces_are_shorter_as_soon_as_steps_are():
    pace = ReadingPace(256)
    paced(pace, step=0.2, for_each=0.001)
    pace.note_round(0, 0.05)
    assert pace.length == longest_piece(0.05, 0.001)


def test_a_round_that_was_interrupted_makes_the_next_piece_no_longer():
    pace = ReadingPace(256)
    paced(pace, step=0.05, for_each=0.001)
    pace.note_round(0, 1.0)
    assert pace.length == longest_piece(0.05, 0.001)


def test_a_prompts_short_end_makes_the_next_piece_no_shorter():
    pace = ReadingPace(256)
    paced(pace, step=0.05, for_each=0.001)
    pace.note_round(3, 0.052)
    pace.note_round(20, 0.08)
    assert pace.length == longest_piece(0.05, 0.001)


def test_a_round_without_a_piece_is_due_now_and_then():
    pace = ReadingPace(256)
    for _ in range(ROUNDS_BETWEEN_STEPS):
        assert not pace.is_step_due
        pace.note_round(16, 0.1)
    assert pace.is_step_due
    pace.note_round(0, 0.05)
    assert not pace.is_step_due


def test_a_piece_is_no_longer_than_the_engine_allows():
    assert ReadingPace(8).length == 8
    assert paced(ReadingPace(8), step=9.0, for_each=0.001)[-1] == 8
