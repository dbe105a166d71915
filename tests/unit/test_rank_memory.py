"""What a rank keeps in memory does not grow with its steps, stacks and checkpoints."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.core.errors import NotFoundError
from headrace.data.storage import open_store
from headrace.observe.probe.thread_stack import StackTexts, ThreadStack
from headrace.records.ring import RingReader, RingWriter
from headrace.records.schema import EVENTS
from run_tables import row_of

ROUNDS = 5_000
Kept = Callable[[], int]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Yield a function: how many bytes are held that were not held at the test's begin."""
    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[0] - begin
    tracemalloc.stop()


def test_texts_of_stacks_are_forgotten(kept: Kept) -> None:
    texts = StackTexts()
    for number in range(ROUNDS):
        lines = _stack_at_line(number + 1)
        assert texts.of(lines) == texts.of(lines) == lines.text()
    assert kept() < 1_500_000  # 8 MB where all are kept


def test_a_writer_of_records_does_not_keep_their_texts(tmp_path: Path, kept: Kept) -> None:
    path = tmp_path / "one.ring"
    writer = RingWriter(path, capacity=8 << 20)
    for number in (*range(ROUNDS), *range(ROUNDS)):
        assert writer.write(EVENTS, *row_of(EVENTS, text=_long_text(number)))
    assert kept() < 1_500_000  # 4 MB where all are kept
    assert _texts_in(path) == [_long_text(number) for number in range(ROUNDS)] * 2


def test_a_store_does_not_keep_the_paths_of_its_files(tmp_path: Path, kept: Kept) -> None:
    store = open_store(str(tmp_path))
    for number in range(ROUNDS):
        path = f"step-{number:012d}/{number:012d}/a-file-of-a-checkpoint"
        store.delete(path)
        with suppress(NotFoundError):
            store.head(path)
    assert kept() < 100_000  # 1 MB where they are kept


def _texts_in(path: Path) -> list[str]:
    at = [field.name for field in EVENTS.fields].index("text")
    return [row[at] for _, row in RingReader(path).rows()]


def _long_text(number: int) -> str:
    return f"{number} " * (640 // len(f"{number} "))


def _stack_at_line(line: int) -> ThreadStack:
    """Return a stack of 41 frames, the outermost at this line."""
    found: list[ThreadStack] = []

    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)
        else:
            found.append(ThreadStack(sys._getframe()))

    code = compile("\n" * (line - 1) + "deeper(39)", "/a/long/path/of/a/script.py", "exec")
    exec(code, {"deeper": deeper})  # noqa: S102 - only so may each stack be another
    return found[0]
