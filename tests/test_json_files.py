"""The reader of small JSON files: what json.dumps writes comes back; what is no file, no JSON or no object is named."""

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.json_files import (
    DEEPEST,
    MOST_BYTES,
    JSONFileError,
    open_for_locking,
    parse_json_line,
    parse_json_object,
    parse_json_value,
    read_json_file,
    read_regular,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=st.dictionaries(st.text(), PLAIN))
def test_what_is_written_comes_back(value):
    assert parse_json_object(json.dumps(value), "a text") == value


@pytest.mark.parametrize(("depth", "is_sound"), [(DEEPEST, True), (DEEPEST + 1, False), (800, False), (10**5, False)])
def test_the_depth_is_limited(depth, is_sound):
    for text in ('{"a":' * depth + "1" + "}" * depth, "[" * depth + "]" * depth):
        if is_sound:
            assert parse_json_value(text, "a text") is not None
        else:
            with pytest.raises(JSONFileError, match=f"^a text is nested too deeply: expected {DEEPEST} levels"):
                parse_json_value(text, "a text")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is damaged, it is not JSON"),
        ('{"a": 1', "is damaged, it is not JSON"),
        ('{"a": 1, "a": 2}', "the same name twice"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"a": ' + "1" * 5000 + "}", "is damaged, it is not JSON"),
        ('{"a": 1e400}', "a number is larger than 2e.308"),
        ('{"a": -' + "1" * 400 + "}", "a number is larger than 2e.308"),
        (b'{"a": "\xff"}', "is damaged, it is not JSON"),
        ("[1]", "holds list: expected an object"),
        ("null", "holds NoneType: expected an object"),
    ],
)
def test_what_is_no_object_is_refused_with_the_name_of_the_file(tmp_path, text, reason):
    path = tmp_path / "x.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(JSONFileError, match=f"x.json.*{reason}"):
        read_json_file(path)


def test_a_pipe_a_device_a_folder_and_a_long_file_are_refused_before_they_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_bytes(b" " * 101)
    for name, number in (("pipe", errno.EINVAL), ("folder", errno.EINVAL), ("/dev/zero", errno.EINVAL)):
        with pytest.raises(OSError, match="not a regular file") as raised:
            read_json_file(tmp_path / name)
        assert raised.value.errno == number
        assert raised.value.filename == str(tmp_path / name)
        with pytest.raises(OSError, match="not a regular file"):
            open_for_locking(tmp_path / name)
    with pytest.raises(OSError, match="longer than 100 bytes"):
        read_regular(tmp_path / "long", 100)
    assert len(read_regular(tmp_path / "long", 101)) == 101
    with pytest.raises(FileNotFoundError):
        read_json_file(tmp_path / "none")


def test_a_line_is_limited_and_holds_an_object():
    assert parse_json_line(b'{"step": 1}', "x.jsonl, line 3") == {"step": 1}
    for line, why in ((b"[1]", "holds list"), (b" " * (MOST_BYTES + 1), "is longer than 16,777,216 bytes")):
        with pytest.raises(JSONFileError, match=f"^x.jsonl, line 3 {why}"):
            parse_json_line(line, "x.jsonl, line 3")
