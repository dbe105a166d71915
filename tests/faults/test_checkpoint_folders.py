"""Folders of checkpoints with hostile links, without their disk, or with what cannot be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.core.files import is_temporary, remove_abandoned_files, temporary_name
from headrace.jobs.sync.remote_copy import RemoteCopy, SyncedFile, SyncManifest, new_checksum
from headrace.jobs.sync.sync_process import FolderSync, restore


class Host:
    """A host whose script writes to `folder`, with a clock of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.messages, self.now_s = tmp_path / "checkpoints", list[str](), 0.0
        self.folder.mkdir(exist_ok=True)
        self.url = str(tmp_path / "bucket")
        self.remote = RemoteCopy(self.url, self.messages.append)
        self.sync = FolderSync(
            self.remote, self.folder, "host", (), self.messages.append, lambda: self.now_s
        )
        self.sync.begin()

    def passes(self, *after_s: float, **how: bool) -> None:
        for seconds in (0.0, *after_s):
            self.now_s += seconds
            self.sync.one_pass(**how)

    def kept(self) -> set[str]:
        return set(RemoteCopy(self.url, print).newest().files)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def _publish(url: str, *names: str, **links: str) -> None:
    """Publish a manifest of files that hold their own names, and of links by path."""
    remote = RemoteCopy(url, print)
    files = {}
    for number, name in enumerate(names):
        digest = new_checksum()
        digest.update(name.encode())
        remote.store.put(f"files/{number}", name.encode())
        files[name] = SyncedFile(
            name=name, size_bytes=len(name), checksum=digest.hexdigest(), mtime_ns=10**18,
            stored_as=f"files/{number}",
        )  # fmt: skip
    for name, link in links.items():
        files[name] = SyncedFile(
            name=name, size_bytes=0, checksum="", mtime_ns=10**18, stored_as="", link=link
        )
    manifest = SyncManifest(host="host", generation=1, owner="o", saved_s=1.0, files=files)
    assert remote.publish(manifest) == manifest


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("last", "last/model.pt"),
        ("run/last", "run/last/model.pt"),
        ("last", "last/deeper/model.pt"),
        ("model.pt", "model.pt"),
    ],
)
def test_a_file_is_not_restored_through_a_link(tmp_path: Path, way: str, name: str):
    folder, outside = tmp_path / "checkpoints", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("as it was")
    (folder / way).parent.mkdir(parents=True)
    (folder / way).symlink_to(outside / "precious" if way == name else outside)
    _publish(str(tmp_path / "bucket"), name)
    reports: list[str] = []
    restore(RemoteCopy(str(tmp_path / "bucket"), print), folder, reports.append)
    assert {each.name: each.read_text() for each in outside.iterdir()} == {"precious": "as it was"}
    assert (folder / name).read_text() == name
    assert not (folder / name).is_symlink()
    if way != name:
        assert any(f"{folder / way} was in the way" in line for line in reports)


def test_drafts_of_killed_restores_are_removed_and_those_of_others_are_not(tmp_path: Path):
    folder, url = tmp_path / "checkpoints", str(tmp_path / "bucket")
    _publish(url, "step-1/model.pt", "model.pt")
    draft = folder / "step-1" / "deeper" / temporary_name()
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"half of it")
    os.utime(draft, (1.0, 1.0))
    seen: set[str] = set()

    def another_restore_begins() -> None:
        for place in (folder, folder / "step-1"):
            found = {each for each in place.glob("*") if is_temporary(each.name)}
            seen.update(each.parent.name for each in found)
            for each in found:
                with suppress(FileNotFoundError):  # another thread's, which is whole by now
                    os.utime(each, (1.0, 1.0))
            remove_abandoned_files(place)

    restore(RemoteCopy(url, print), folder, print, another_restore_begins)
    assert seen == {"checkpoints", "step-1"}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {"step-1/model.pt", "model.pt"}


def test_a_file_in_the_place_of_a_folder_is_moved_away(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-1").write_text("a file")
    names = [f"step-1/{number}" for number in range(20)]  # by several threads
    _publish(str(tmp_path / "bucket"), *names)
    restore(RemoteCopy(str(tmp_path / "bucket"), print), tmp_path / "checkpoints", print)
    found = {path.read_text() for path in (tmp_path / "checkpoints" / "step-1").iterdir()}
    assert found == set(names)
    (moved,) = (tmp_path / "checkpoints").glob("step-1.before-*")
    assert moved.read_text() == "a file"


def test_links_that_lead_out_by_way_of_others_are_left_out(tmp_path: Path):
    folder = tmp_path / "deep" / "checkpoints"
    links = {"a/top": "..", "a/out": "top/..", "a/further": "top/../..", "b": "a/out", "in": "a"}
    _publish(str(tmp_path / "bucket"), "a/1.pt", **links)
    reports: list[str] = []
    restore(RemoteCopy(str(tmp_path / "bucket"), print), folder, reports.append)
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink()}
    assert {"a/top", "in"} <= left
    assert not {"a/out", "a/further"} & left
    for link in left:
        assert (folder / link).resolve().is_relative_to(folder)
    assert sum("leads out of the folder" in line for line in reports) == 5 - len(left)


def test_a_folder_that_was_emptied_leaves_what_was_kept(host: Host):
    for name in ("1.pt", "2.pt"):
        (host.folder / name).write_text(name)
    host.passes(2.0)
    for file in host.folder.iterdir():
        file.unlink()
    host.passes(100.0, 100.0)
    host.passes(1.0, at_the_end=True)
    assert host.kept() == {"1.pt", "2.pt"}
    assert sum("2 files are not there any more" in line for line in host.messages) == 1
    (host.folder / "3.pt").write_text("three")
    host.passes(0.5)  # it is not complete yet
    assert host.kept() == {"1.pt", "2.pt"}
    host.passes(2.0, 10.0)
    assert host.kept() == {"3.pt"}


def test_a_file_that_was_rewritten_with_its_old_size_and_time_is_synced_anew(host: Host):
    file = host.folder / "last.pt"
    for text in ("one", "two"):
        file.write_text(text)
        os.utime(file, ns=(10**18, 10**18))  # as rsync and cp -p do
        host.passes(2.0)
    os.link(file, host.folder.parent / "another name")
    host.passes(2.0)
    there = host.folder.parent / "there"
    restore(RemoteCopy(host.url, print), there, print)
    assert (there / "last.pt").read_text() == "two"
    assert len(list((host.folder.parent / "bucket" / "files").iterdir())) <= 2


UNMOUNTED = """
import subprocess, sys
from pathlib import Path
from test_checkpoint_folders import Host

host = Host(Path(sys.argv[1]))
where = host.folder / sys.argv[2]
where.mkdir(exist_ok=True)
subprocess.run(["mount", "-t", "tmpfs", "none", where], check=True)
(where / "1.pt").write_text("one")
host.passes(2.0, 8.0)
assert len(host.kept()) == 1, host.kept()
subprocess.run(["umount", where], check=True)
(host.folder / "2.pt").write_text("written to the disk below it")
host.passes(8.0, 100.0)
host.passes(1.0, at_the_end=True)
print(sorted(host.kept()))
"""


@pytest.mark.parametrize("where", [".", "run"])
def test_a_disk_that_was_unmounted_leaves_what_was_kept_of_it(tmp_path: Path, where: str):
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount",
         sys.executable, "-c", UNMOUNTED, str(tmp_path), where],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{sorted(['2.pt', str(Path(where) / '1.pt')])}\n"


def test_what_cannot_be_looked_at_is_not_gone(host: Host, monkeypatch: pytest.MonkeyPatch):
    (host.folder / "run").mkdir()
    for name in ("1.pt", "run/2.pt"):
        (host.folder / name).write_text(name)
    host.passes(2.0, 8.0)
    lstat = Path.lstat

    def failing(path: Path):
        if path.name == "2.pt":
            raise OSError(116, "Stale file handle")
        return lstat(path)

    with monkeypatch.context() as patch:  # no disk here can be made to fail like that
        patch.setattr(Path, "lstat", failing)
        (host.folder / "3.pt").write_text("three")
        host.passes(8.0, 100.0)
        host.passes(1.0, at_the_end=True)
    assert host.kept() == {"1.pt", "run/2.pt", "3.pt"}
    assert any("run/2.pt: Stale file handle" in line for line in host.messages)
    shutil.rmtree(host.folder / "run")
    host.passes(8.0, 100.0)
    assert host.kept() == {"1.pt", "3.pt"}


def test_a_folder_that_cannot_be_looked_at_is_tried_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
):
    (host.folder / "1.pt").write_text("one")
    host.passes(2.0)
    with monkeypatch.context() as patch:

        def disconnected(_path: Path, **_: object):
            raise OSError(107, "Transport endpoint is not connected")

        patch.setattr(Path, "stat", disconnected)
        with pytest.raises(OSError, match="not connected"):
            host.passes()
    host.passes(10.0)
    assert host.kept() == {"1.pt"}
