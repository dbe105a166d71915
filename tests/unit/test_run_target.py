"""Where a run is tracked: what is known of it in a folder that was moved, copied or damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from headrace.decide.experiments.run_target import (
    SENT_FILE,
    TARGET_FILE,
    RunTarget,
    RunTargetError,
    database_uri,
    target_to_go_on,
    tracking_uri,
)
from headrace.decide.experiments.spool import SPOOL

Made = Callable[[Path], Path]  # from a run's folder, another one of it


def target(runs: Path, key: str = "k") -> RunTarget:
    return RunTarget(
        key=key, tracking_uri=database_uri(runs), experiment="e", run_name="base", started_ms=1,
        run_type="test",
    )  # fmt: skip


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder of a run, of which MLflow has something."""
    folder = tmp_path / "runs" / "base"
    target(folder.parent).write(folder / SPOOL)
    (folder / SPOOL / SENT_FILE).write_text('{"run_id": "1"}')
    return folder


def renamed(folder: Path) -> Path:
    return folder.rename(folder.with_name("branch"))


def moved_with_its_runs(folder: Path) -> Path:
    return folder.parent.rename(folder.parent.with_name("archive")) / folder.name


def copied(folder: Path, *place: str) -> Path:
    return Path(shutil.copytree(folder, folder.parent.joinpath(*place or ("branch",))))


def copied_with_its_runs(folder: Path) -> Path:
    return Path(shutil.copytree(folder.parent, folder.parent.with_name("other"))) / folder.name


def moved_to_another_disk(folder: Path) -> Path:
    """As `mv` does there; on another machine, too, there is no original."""
    found = copied(folder, "..", "archive", folder.name)
    shutil.rmtree(folder)
    return found


def copied_from_another_machine(folder: Path) -> Path:
    found = copied(folder)
    shutil.rmtree(folder)
    return found


def copied_before_its_name_was_taken_anew(folder: Path) -> Path:
    found = copied_from_another_machine(folder)
    target(folder.parent, "another run's").write(folder / SPOOL)
    return found


def moved_before_its_name_was_taken_anew(folder: Path) -> Path:
    found = moved_to_another_disk(folder)
    target(folder.parent, "another run's").write(folder / SPOOL)
    return found


@pytest.mark.parametrize("made", [
    Path, renamed, moved_with_its_runs, moved_to_another_disk, moved_before_its_name_was_taken_anew,
])  # fmt: skip
def test_a_folder_that_was_moved_goes_on_with_its_run(base: Path, made: Made):
    folder = made(base)
    for _ in range(2):  # attempts
        found = target_to_go_on(folder / SPOOL)
        assert found is not None
        assert found.key == "k"
    assert (folder / SPOOL / SENT_FILE).exists()
    assert target_to_go_on(copied(folder, "later") / SPOOL) is None


@pytest.mark.parametrize("made", [
    copied, copied_with_its_runs, copied_from_another_machine,
    copied_before_its_name_was_taken_anew,
])  # fmt: skip
def test_an_attempt_in_the_folder_of_a_copy_begins_another_run(base: Path, made: Made):
    folder = made(base)
    assert target_to_go_on(folder / SPOOL) is None
    assert not (folder / SPOOL).exists()  # nothing of it is taken for the new run's
    (aside,) = folder.glob(f"{SPOOL}-*")
    assert (aside / SENT_FILE).exists()
    target(folder.parent, "new").write(folder / SPOOL)
    found = target_to_go_on(folder / SPOOL)
    assert found is not None
    assert found.key == "new"
    if base.exists():
        original = target_to_go_on(base / SPOOL)
        assert original is not None
        assert original.key != "new"


def test_a_copy_is_known_as_one_while_its_original_is_there(base: Path):
    copy = copied(base) / SPOOL
    known = RunTarget.read(copy)
    assert known is not None
    assert known.has_original(copy)
    assert not known.has_original(base / SPOOL)
    shutil.rmtree(base)
    assert not known.has_original(copy)


def test_a_target_of_an_older_version_is_that_of_its_folder(base: Path):
    file = base / SPOOL / TARGET_FILE
    written = json.loads(file.read_text())
    del written["spool"], written["inode"]
    file.write_text(json.dumps(written))
    folder = copied_from_another_machine(base)
    assert target_to_go_on(folder / SPOOL) is not None
    assert target_to_go_on(copied(folder, "later") / SPOOL) is None


DAMAGED = [
    b"", b"{", b"[]", b"null", b'{"key": "k"}', b"\0" * 200, b"\xff\xfe",
    json.dumps(asdict(target(Path("/runs"))) | {"of_a_newer_version": 1}).encode(),
    json.dumps(asdict(target(Path("/runs"))) | {"tracking_uri": None}).encode(),
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED)
def test_a_damaged_target_is_one_error_that_names_its_file(base: Path, data: bytes):
    file = base / SPOOL / TARGET_FILE
    file.write_bytes(data)
    with pytest.raises(RunTargetError, match=r"base/experiment/target\.json, .* cannot be read"):
        RunTarget.read(base / SPOOL)
    with pytest.raises(RunTargetError):
        target_to_go_on(base / SPOOL)
    assert RunTarget.readable(base / SPOOL) is None
    assert file.read_bytes() == data


@pytest.mark.parametrize(
    ("given", "absolute"),
    [
        ("mlruns", "{}/mlruns"), ("./my runs", "{}/my runs"), ("../a:9/runs", "{}/../a:9/runs"),
        ("file:mlruns", "file://{}/mlruns"), ("file:./my%20runs", "file://{}/my%20runs"),
        ("sqlite:///a/b.db", "sqlite:///{}/a/b.db"),
    ],
)  # fmt: skip
def test_a_relative_path_counts_from_where_it_was_given(
    given: str, absolute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    found = tracking_uri(tmp_path, given)
    assert found == absolute.format(tmp_path)
    assert tracking_uri(tmp_path, found) == found


@pytest.mark.parametrize(
    "given",
    [
        "/data/mlruns", "file:///data/my%20runs", "file:/data/mlruns", "http://host:5000",
        "databricks", "databricks://team", "uc", "arn:aws:sagemaker:eu:1:mlflow-server/a",
        "postgresql://host/mlflow", "sqlite:////data/mlflow.db",
    ],
)  # fmt: skip
def test_what_is_no_relative_path_stays_as_it_was_given(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert tracking_uri(tmp_path, given) == given
