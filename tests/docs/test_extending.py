"""The code on docs/extending.md is the code of the two changes that it describes."""

import re
from pathlib import Path

import pellucid

SOURCE = Path(pellucid.__file__).parent
PAGE = SOURCE.parent.parent / "docs" / "extending.md"
FILES = ("architecture.py", "hub/tables/llama.py", "presets.py")


def test_every_piece_of_code_on_the_page_stands_in_the_source():
    source = "\n".join((SOURCE / name).read_text(encoding="utf-8") for name in FILES)
    diffs = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    pieces = [re.sub(r"^\+", "", diff, flags=re.MULTILINE) for diff in diffs]
    assert len(pieces) >= 7
    assert [piece for piece in pieces if piece not in source] == []
