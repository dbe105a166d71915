"""Warnings raised through a wrapper name the line that they name without it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from headrace.core.import_hooks import after_import
from headrace.core.warning_frames import skipped_by_warnings


def warns(level: int) -> None:
    warnings.warn("old", UserWarning, stacklevel=level)


@skipped_by_warnings
def wrapped(level: int) -> None:
    inner(level)


@skipped_by_warnings
def inner(level: int) -> None:
    warns(level)


def direct(level: int) -> None:
    warns(level)  # 2: this line


def through(level: int) -> None:
    wrapped(level)  # 2: this line


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_place_is_that_of_a_direct_call(level: int):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for call in (direct, through):
            call(level)  # 3: this line
    expected, found = seen
    assert found.filename == expected.filename == __file__
    lines = Path(__file__).read_text().splitlines()
    if level > 1:
        assert lines[found.lineno - 1].endswith(f"# {level}: this line")
    else:
        assert found.lineno == expected.lineno


def test_a_line_warns_once_as_if_called_directly():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            through(2)
    assert len(seen) == 1


def test_errors_still_show_the_file():
    with pytest.raises(TypeError) as raised:
        wrapped()  # type: ignore[call-arg]
    assert raised.type is TypeError
    assert wrapped.__code__.co_filename.startswith(__file__)


def test_a_module_that_warns_of_its_import_names_the_line_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "old_module.py").write_text(
        "import warnings\n\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    hooked: list[str] = []
    after_import("old_module", lambda module: hooked.append(module.__name__))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import old_module  # noqa: F401 - the import in question
    assert hooked == ["old_module"]
    assert [each.filename for each in seen] == [__file__]
