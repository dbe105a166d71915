"""Values in the ranks' output, where the disk is full for a while."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headrace.jobs import metric_scraper as module
from headrace.jobs.metric_scraper import _LogScanner
from headrace.records.layout import METRICS_FILE, read_metrics


def values(run: Path) -> list[float]:
    return [row["value"] for row in read_metrics(run)]


def test_what_a_full_disk_did_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    logs = tmp_path / "logs"
    logs.mkdir()
    scanner = _LogScanner({
        "logs": str(logs), "file": str(tmp_path / METRICS_FILE), "attempt": 1, "spool": "",
        "metrics": {"loss": r"loss=([\d.]+)"},
    })  # fmt: skip
    log = (logs / "rank-0.stdout").open("a")

    def printed(value: float) -> None:
        log.write(f"loss={value}\n")
        log.flush()

    def full(_descriptor: int, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    printed(1.0)
    scanner.look()
    with monkeypatch.context() as patched:
        patched.setattr(module, "append_whole", full)
        for value in (2.0, 3.0):
            printed(value)
            with pytest.raises(OSError, match="No space"):
                scanner.look()
    printed(4.0)
    scanner.look(to_the_end=True)
    assert values(tmp_path) == [1.0, 2.0, 3.0, 4.0]
    log.close()


def test_a_damaged_line_hides_no_other(tmp_path: Path):
    file = tmp_path / METRICS_FILE
    file.write_text('{"value": 1.0}\n{"value": 2.{"value": 3.0}\n{"value": 4.0}\n{"val')
    assert values(tmp_path) == [1.0, 4.0]
