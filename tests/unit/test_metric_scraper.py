"""Values in the ranks' output, wherever it is logged, and where the disk is full for a while."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std

from headrace.decide.experiments.spool import read_spool
from headrace.jobs import metric_scraper as module
from headrace.jobs.metric_scraper import _LogScanner
from headrace.jobs.torchrun import RankLogFiles, RunLogs
from headrace.records.layout import METRICS_FILE, read_metrics


def values(run: Path) -> list[float]:
    return [row["value"] for row in read_metrics(run)]


def scanner_of(run: Path, *, first_source: str = "rank-0", spool: str = "") -> _LogScanner:
    """A scanner of the logs of a run."""
    (run / "logs").mkdir()
    return _LogScanner({
        "logs": str(run / "logs"), "file": str(run / METRICS_FILE), "attempt": 1, "spool": spool,
        "metrics": {"loss": r"loss=([\d.]+)"}, "first_source": first_source,
    })  # fmt: skip


def test_what_a_full_disk_did_not_take_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    logs = tmp_path / "logs"
    scanner = scanner_of(tmp_path)
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


def _run_logs(folder: Path) -> RunLogs:
    return RunLogs(RankLogFiles(folder, 0), prefix=None, shown=None)


@pytest.mark.parametrize(
    "specs_of",
    [
        lambda run, _: _run_logs(run),
        lambda _, own: _run_logs(own),
        lambda run, _: DefaultLogsSpecs(log_dir=str(run), tee=Std.ALL),
        lambda run, _: DefaultLogsSpecs(log_dir=str(run), redirects=Std.OUT),
        lambda _, own: DefaultLogsSpecs(log_dir=str(own), tee={0: Std.ALL, 1: Std.OUT}),
    ],
    ids=["ours", "--log-dir", "--tee", "--redirects", "--log-dir and --tee"],
)
def test_logs_of_ranks_are_read_wherever_torchrun_has_them(
    specs_of: Callable[[Path, Path], LogsSpecs], tmp_path: Path
):
    run, own = tmp_path / "logs", tmp_path / "own"
    scanner, files = scanner_of(tmp_path), RankLogFiles(run, 0)
    own.mkdir()
    (own / "rank-4.stdout").write_text("loss=9.0\n" * 9)  # of an earlier run
    specs = specs_of(run, own)
    for start in (0, 1):
        # Ranks 4 and 5 of a job are the first ones of this host.
        envs = {
            local: {"RANK": str(4 + local), "TORCHELASTIC_RESTART_COUNT": str(start)}
            for local in (0, 1)
        }
        logs = specs.reify(envs)
        files.link(logs, {0: 4, 1: 5})
        scanner.look()
        for local, file in logs.stdouts.items():
            with Path(file).open("w") as stream:  # as torchrun begins it
                stream.write(f"loss={start}.{local}\n")
        scanner.look()
    if isinstance(specs, RunLogs):
        specs.close()
    assert [(row["source"], row["value"]) for row in read_metrics(tmp_path)] == [
        ("rank-4", 0.0), ("rank-5", 0.1), ("rank-4", 1.0), ("rank-5", 1.1),
    ]  # fmt: skip


def test_a_log_that_is_no_file_is_left_alone(tmp_path: Path):
    logs = LogsDest(stdouts={0: "/dev/null"}, stderrs={0: ""})
    RankLogFiles(tmp_path, 0).link(logs, {0: 0})
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_no_log_is_not_said_to_be_unprinted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    scanner = scanner_of(tmp_path)
    (tmp_path / "logs" / "rank-0.stdout").touch()
    scanner.look(to_the_end=True)
    scanner.report_missing()
    assert "standard error is in no log (--tee 3 puts it there)" in capsys.readouterr().err


@pytest.mark.parametrize("first", ["rank-0", "gpu-0", "algo-1"])
def test_the_first_log_s_values_have_no_other_name(first: str, tmp_path: Path):
    scanner = scanner_of(tmp_path, first_source=first, spool=str(tmp_path / "spool"))
    for source in (first, "another"):
        (tmp_path / "logs" / f"{source}.stdout").write_text("loss=1\n")
    scanner.look()
    assert scanner._spool is not None
    scanner._spool.close()
    entries = [entry for found, _ in read_spool(tmp_path / "spool", {}) for entry in found]
    names = {name for entry in entries for name in entry["values"]}
    assert names == {"loss", "loss/another"}
