"""The length of pieces of prompts, on a machine whose times are made up."""

import pytest

from pellucid.serve.reading_pace import SHORTEST_PIECE, ReadingPace


def paced(pace: ReadingPace, step: float, fixed: float, for_each: float, pieces: int = 20) -> int:
    """The length of a piece after some, each of which took `fixed` and `for_each` of its tokens, in seconds."""
    for _ in range(pieces):
        pace.note_step(step)
        pace.note_piece(pace.length, fixed + for_each * pace.length)
    return pace.length


def test_a_piece_takes_as_long_as_a_step():
    pace = ReadingPace(256)
    assert pace.length == SHORTEST_PIECE
    assert paced(pace, step=0.05, fixed=0.0, for_each=0.001) == 50
    assert paced(pace, step=0.03, fixed=0.01, for_each=0.0005) == pytest.approx(40, abs=1)
    # reading the weights alone takes longer than a step
    assert paced(pace, step=0.01, fixed=0.02, for_each=0.001) == SHORTEST_PIECE
    assert paced(pace, step=9.0, fixed=0.02, for_each=0.001) == 256


def test_no_piece_on_the_way_takes_longer_than_a_step():
    pace, lengths = ReadingPace(256), []
    for _ in range(20):
        lengths.append(paced(pace, step=0.06, fixed=0.02, for_each=0.001, pieces=1))
    assert lengths == sorted(lengths)
    assert lengths[-1] == 40


def test_pieces_are_shorter_as_soon_as_steps_are():
    pace = ReadingPace(256)
    paced(pace, step=0.2, fixed=0.0, for_each=0.001)
    for _ in range(3):
        pace.note_step(0.05)
    assert pace.length == 50


def test_one_step_that_was_interrupted_makes_the_next_piece_no_longer():
    pace = ReadingPace(256)
    paced(pace, step=0.05, fixed=0.0, for_each=0.001)
    pace.note_step(1.0)
    assert pace.length == 50


def test_a_prompts_short_end_makes_the_next_piece_no_shorter():
    pace = ReadingPace(256)
    paced(pace, step=0.05, fixed=0.0, for_each=0.001)
    pace.note_piece(3, 0.02)
    assert pace.length == 50


def test_a_piece_is_no_longer_than_the_engine_allows():
    assert ReadingPace(8).length == 8
    assert paced(ReadingPace(8), step=9.0, fixed=0.0, for_each=0.001) == 8
