"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.files import write_text_atomically


def test_a_text_takes_the_place_of_what_was_there(tmp_path: Path):
    (tmp_path / "run.json").write_text("before")
    write_text_atomically(tmp_path / "run.json", "after \u2013 it\n")
    assert (tmp_path / "run.json").read_bytes() == "after \u2013 it\n".encode()
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_what_was_there_stays_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "run.json").write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(tmp_path / "run.json", "half of it, then \ud800")
    with pytest.raises(OSError, match="No such file"):
        write_text_atomically(tmp_path / "gone" / "run.json", "after")
    assert (tmp_path / "run.json").read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
