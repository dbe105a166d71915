"""What of a folder is copied to a URL, on a real S3 server: complete files, all of a step at once.

The clock is the test's, so that what settles does so without anybody waiting.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.errors import CheckpointError, StorageError
from headrace.jobs.sync import remote_copy
from headrace.jobs.sync.remote_copy import FencedError, RemoteCopy
from headrace.jobs.sync.sync_process import FolderSync, restore


class Host:
    """A host of a job, whose script writes to `folder`."""

    def __init__(
        self, url: str, folder: Path, name: str = "host", others: tuple[str, ...] | None = ()
    ) -> None:
        self.url, self.folder, self.messages, self.now_s = url, folder, list[str](), 0.0
        folder.mkdir(exist_ok=True)
        self.remote = RemoteCopy(url, self.messages.append)
        self.sync = FolderSync(
            self.remote, folder, name, others, self.messages.append, lambda: self.now_s
        )
        self.sync.begin()

    def passes(self, *after_s: float) -> None:
        for seconds in (0.0, *after_s):
            self.now_s += seconds
            self.sync.one_pass()


@pytest.fixture
def host(s3_url: str, tmp_path: Path) -> Host:
    return Host(s3_url, tmp_path / "checkpoints")


@pytest.fixture
def found(s3_url: str, tmp_path: Path) -> Callable[[], dict[str, str]]:
    """What a job that starts elsewhere finds."""

    def look() -> dict[str, str]:
        folder = tmp_path / "elsewhere"
        shutil.rmtree(folder, ignore_errors=True)
        restore(RemoteCopy(s3_url, print), folder, print)
        return {
            path.relative_to(folder).as_posix(): path.read_text()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return look


Found = Callable[[], dict[str, str]]


def test_a_file_is_copied_once_it_is_closed_and_has_settled(host: Host, found: Found) -> None:
    with (host.folder / "a").open("w") as file:
        file.write("half")
        file.flush()
        host.passes(100.0, 100.0)
        assert found() == {}
        file.write(" and half")
    host.passes(0.5)
    assert found() == {}
    host.passes(2.0, 2.0)
    assert found() == {"a": "half and half"}


def test_a_file_that_is_written_anew_in_place_stays_as_it_was_until_that_is_whole(
    host: Host, found: Found
) -> None:
    (host.folder / "latest").write_text("one")
    host.passes(2.0)
    with (host.folder / "latest").open("w") as file:
        file.write("tw")
        file.flush()
        host.passes(2.0, 2.0)
        assert found() == {"latest": "one"}
        file.write("o")
    host.passes(2.0, 2.0)
    assert found() == {"latest": "two"}


def test_a_file_renamed_into_place_is_copied_and_its_draft_is_not_left(
    host: Host, found: Found
) -> None:
    (host.folder / "draft").write_text("one")
    host.passes()
    (host.folder / "draft").rename(host.folder / "1.pt")
    host.passes(2.0)
    assert found() == {"1.pt": "one"}


def test_files_of_one_checkpoint_are_listed_all_at_once(host: Host, found: Found) -> None:
    step = host.folder / "checkpoint-500"
    step.mkdir()
    (step / "model").write_text("m")
    host.passes(2.0)
    (step / "optimizer").write_text("o")
    host.passes(2.0)
    assert found() == {}
    host.passes(6.0)
    assert found() == {"checkpoint-500/model": "m", "checkpoint-500/optimizer": "o"}


def test_a_file_that_was_only_touched_stays_where_manifests_have_it(
    host: Host, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = host.folder / "step-3"
    step.mkdir()
    (step / "config.json").write_text("c")
    (step / "model").write_text("m")
    host.passes(8.0)
    before = found()
    assert before == {"step-3/config.json": "c", "step-3/model": "m"}
    os.utime(step / "config.json")
    (step / "model").write_text("n")
    with monkeypatch.context() as patched:
        patched.setattr(type(host.remote.store), "put", refuse)
        with pytest.raises(StorageError):
            host.passes(8.0)
    assert found() == before
    host.passes(8.0)
    assert found() == {"step-3/config.json": "c", "step-3/model": "n"}


def refuse(*_: object) -> None:
    raise StorageError("The store is full.")


@pytest.mark.parametrize("number", [8, 10**12, 1_790_000_000_000_000])
def test_a_step_of_the_checkpointer_waits_for_its_commit_file(
    host: Host, found: Found, number: int
) -> None:
    step = host.folder / f"step-{number:012}"
    step.mkdir()
    (step / "part").write_text("p")
    host.passes(60.0, 60.0)
    assert found() == {}
    (step / "commit.json").write_text("{}")
    host.passes(2.0)
    assert len(found()) == 2


def test_what_was_written_last_is_never_listed_without_what_came_before(
    host: Host, found: Found
) -> None:
    step = host.folder / "epoch-3"
    step.mkdir()
    (step / "weights").write_text("w")
    (host.folder / "latest").write_text("epoch-3")
    host.passes(2.0, 1.0)  # a file settles sooner than a folder
    assert found() == {}
    host.passes(6.0)
    assert found() == {"epoch-3/weights": "w", "latest": "epoch-3"}


def test_a_log_that_never_rests_delays_no_checkpoint(host: Host, found: Found) -> None:
    (host.folder / "1.pt").write_text("one")
    for line in range(8):
        with (host.folder / "log").open("a") as log:
            log.write(f"{line}\n")
        host.passes(0.5)
    assert "1.pt" in found()


def test_what_the_script_removes_goes_once_a_later_manifest_has_the_new_one(
    host: Host, found: Found
) -> None:
    (host.folder / "1.pt").write_text("one")
    host.passes(2.0)
    (host.folder / "1.pt").unlink()
    (host.folder / "2.pt").write_text("two")
    host.passes(0.5)
    assert found() == {"1.pt": "one"}
    host.passes(2.0)
    assert "2.pt" in found()
    host.passes(10.0)
    assert found() == {"2.pt": "two"}
    (host.folder / "3.pt").write_text("three")
    host.passes(2.0)
    objects = [info.path for info in host.remote.store.list("files")]
    assert not any("1.pt" in path for path in objects)
    assert len(list(host.remote.store.list("manifests"))) == 2


def test_a_folder_that_is_gone_is_not_taken_for_an_empty_one(host: Host, found: Found) -> None:
    (host.folder / "1.pt").write_text("one")
    host.passes(2.0)
    shutil.rmtree(host.folder)
    with pytest.raises(CheckpointError, match="is gone"):
        host.passes()
    assert found() == {"1.pt": "one"}


def test_what_its_own_format_says_is_cut_short_is_reported_and_not_copied(
    host: Host, found: Found
) -> None:
    with zipfile.ZipFile(host.folder / "a.pt", "w") as archive:
        archive.writestr("data", "x" * 10_000)
    whole = (host.folder / "a.pt").read_bytes()
    (host.folder / "a.pt").write_bytes(whole[:5_000])
    (host.folder / "b.safetensors").write_bytes((100).to_bytes(8, "little") + b"{}")
    host.passes(2.0, 2.0)
    assert found() == {}
    assert any("a.pt: its end is missing" in line for line in host.messages)
    assert any("b.safetensors: its end is missing" in line for line in host.messages)


def test_links_inside_the_folder_are_copied_and_others_are_reported(
    host: Host, tmp_path: Path, s3_url: str
) -> None:
    (host.folder / "1.pt").write_text("one")
    (host.folder / "last.pt").symlink_to("1.pt")
    (host.folder / "out").symlink_to("/etc/hostname")
    host.passes(2.0)
    restore(RemoteCopy(s3_url, print), tmp_path / "there", print)
    assert (tmp_path / "there" / "last.pt").readlink() == Path("1.pt")
    assert not (tmp_path / "there" / "out").exists()
    assert any("leads out" in line for line in host.messages)


def test_a_damaged_manifest_is_reported_and_the_one_before_it_taken(
    host: Host, s3_url: str
) -> None:
    (host.folder / "1.pt").write_text("one")
    host.passes(2.0)
    (host.folder / "2.pt").write_text("two")
    host.passes(2.0)
    *_, newest = host.remote.store.list("manifests")
    host.remote.store.put(newest.path, bytes(host.remote.store.get(newest.path))[:-40])
    messages: list[str] = []
    assert set(RemoteCopy(s3_url, messages.append).newest().files) == {"1.pt"}
    assert newest.path in messages[0]
    assert "The manifest before it is taken" in messages[0]


@pytest.fixture
def kept_by_two(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, Host]:
    """Two hosts, of which the second keeps a file, and an object of a killed process."""
    host = Host(s3_url, tmp_path / "host", "host", ("other",))
    other = Host(s3_url, tmp_path / "other", "other", ("host",))
    (other.folder / "1.pt").write_text("one")
    other.passes(2.0)
    host.remote.store.put("files/from-a-killed-process", b"")
    monkeypatch.setattr(remote_copy, "_UNLISTED_AGE_S", -3600.0)
    return host, other


def objects(host: Host) -> list[str]:
    return [info.path.partition("@")[0] for info in host.remote.store.list("files")]


@pytest.mark.parametrize("others", [("other",), ()], ids=["in the job", "not in the job"])
def test_what_a_damaged_manifest_may_list_is_not_deleted(
    kept_by_two: tuple[Host, Host], s3_url: str, others: tuple[str, ...]
) -> None:
    """Another host's newest manifest alone lists its newest files."""
    host, _ = kept_by_two
    store = host.remote.store
    *_, newest = store.list("manifests/other")
    whole = bytes(store.get(newest.path))
    store.put(newest.path, whole[:-40])
    again = Host(s3_url, host.folder, "host", others)
    assert objects(host) == ["files/1.pt", "files/from-a-killed-process"]
    assert any(newest.path in line and "left where they are" in line for line in again.messages)


def test_what_no_manifest_lists_is_deleted_when_a_job_starts(
    kept_by_two: tuple[Host, Host], s3_url: str
) -> None:
    host, _ = kept_by_two
    Host(s3_url, host.folder, "host", ("other",))
    assert objects(host) == ["files/1.pt"]


def test_manifests_that_are_replaced_as_they_are_read_are_listed_again(
    kept_by_two: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, other = kept_by_two
    generations = host.remote._generations
    publishing = iter(("2.pt", "3.pt"))

    def listed_before_another_publishes(name: str | None = None) -> dict[str, list[int]]:
        found = generations(name)
        for new in publishing:  # by the second the oldest of those that were listed is gone
            (other.folder / new).write_text(new)
            other.passes(2.0)
        return found

    monkeypatch.setattr(host.remote, "_generations", listed_before_another_publishes)
    host.remote.tidy()
    assert objects(host) == ["files/1.pt", "files/2.pt", "files/3.pt"]


def test_what_is_no_manifest_is_none(host: Host, found: Found) -> None:
    (host.folder / "a").write_text("1")
    host.passes(2.0, 2.0)
    store = host.remote.store
    store.put("manifests/other", b"")  # as some stores list a folder that is being made
    store.put("manifests/host/000000000009.json~", b"")
    assert found() == {"a": "1"}


def test_an_object_that_is_not_what_was_copied_starts_no_job(host: Host, found: Found) -> None:
    (host.folder / "1.pt").write_text("one")
    host.passes(2.0)
    (stored,) = host.remote.store.list("files")
    host.remote.store.put(stored.path, b"two")
    with pytest.raises(CheckpointError, match=r"its checksum is not that of 1\.pt"):
        found()


def test_what_is_there_and_equal_is_not_fetched_again(host: Host, tmp_path: Path) -> None:
    (host.folder / "1.pt").write_text("one")
    host.passes(2.0)
    before = (host.folder / "1.pt").stat()
    messages: list[str] = []
    restore(host.remote, host.folder, messages.append)
    assert messages == []
    assert (host.folder / "1.pt").stat() == before


def test_hosts_of_one_job_get_the_files_of_all_and_each_removes_its_own(
    s3_url: str, tmp_path: Path, found: Found
) -> None:
    one = Host(s3_url, tmp_path / "1", "host-1", ("host-2",))
    two = Host(s3_url, tmp_path / "2", "host-2", ("host-1",))
    (one.folder / "rank-0").write_text("0")
    (two.folder / "rank-1").write_text("1")
    one.passes(2.0)
    two.passes(2.0)
    assert found() == {"rank-0": "0", "rank-1": "1"}
    restore(one.remote, one.folder, print)
    restore(two.remote, two.folder, print)
    one, two = (
        Host(s3_url, tmp_path / "1", "host-1", ("host-2",)),
        Host(s3_url, tmp_path / "2", "host-2", ("host-1",)),
    )
    (one.folder / "rank-0").unlink()
    one.passes(2.0, 10.0)
    two.passes(2.0, 10.0)  # it has that file too, but does not keep it
    assert found() == {"rank-1": "1"}


def test_of_two_hosts_files_with_one_name_the_newest_wins_and_that_is_reported_once(
    s3_url: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        names = ("host-1", "host-2")
        host = Host(s3_url, tmp_path / str(number), names[number - 1], (names[2 - number],))
        (host.folder / "same").write_text(f"of {number}")
        host.passes(2.0)
    messages: list[str] = []
    remote = RemoteCopy(s3_url, messages.append)
    for _ in range(2):
        restore(remote, tmp_path / "there", lambda _: None)
    assert (tmp_path / "there" / "same").read_text() == "of 2"
    assert messages == [
        "same was kept by host-1 and by host-2; the one that was written last is taken"
    ]


def test_a_job_of_fewer_hosts_takes_over_what_the_others_have_left(
    s3_url: str, tmp_path: Path, found: Found
) -> None:
    two = Host(s3_url, tmp_path / "2", "host-2", ("host-1",))
    (two.folder / "rank-1").write_text("1")
    two.passes(2.0)
    restore(two.remote, tmp_path / "1", print)
    one = Host(s3_url, tmp_path / "1", "host-1")
    assert found() == {"rank-1": "1"}
    (one.folder / "rank-1").unlink()
    (one.folder / "rank-0").write_text("0")
    one.passes(10.0, 10.0)
    assert found() == {"rank-0": "0"}


def test_numbered_hosts_take_over_what_hosts_of_other_names_have_left(tmp_path: Path) -> None:
    """As of torchrun's hosts that were replaced, or had met by another rendezvous before."""
    url = str(tmp_path / "url")
    for name in ("ip-10-0-0-7.ec2.internal", "ip-10-0-0-8"):
        gone = Host(url, tmp_path / name, name, None)
        (gone.folder / f"{name}.pt").write_text(name)
        gone.passes(2.0)
    for number in (0, 1):
        restore(gone.remote, tmp_path / f"node-{number}", print)
    one, two = (
        Host(url, tmp_path / f"node-{number}", f"node-{number}", (f"node-{1 - number}",))
        for number in (0, 1)
    )
    for file in one.folder.iterdir():
        file.unlink()
    for host, name in ((one, "0.pt"), (two, "1.pt")):
        (host.folder / name).write_text("new")
        host.passes(2.0, 10.0)
    merged = one.remote.newest()
    assert set(merged.files) == {"0.pt", "1.pt"}
    assert set(merged.manifests) == {"node-0", "node-1"}


HOST_NAMES = [
    "ip-10-0-0-1.ec2.internal", "ip-10-0-0-1.ec2.internal.", "NODE-1", "node_1", "knoten-\u00fc",
    "knoten-\u00f6", "\udce9", "a/../b c", "n" * 64 + ".a", "n" * 64 + ".b", "n" * 300, "",
]  # fmt: skip


@pytest.mark.parametrize("name", HOST_NAMES)
def test_a_host_takes_over_what_it_kept_whatever_its_name(name: str, tmp_path: Path) -> None:
    """torchrun's hosts go by the names that they have themselves, and do not know of each other."""
    url, folder = str(tmp_path / "url"), tmp_path / "checkpoints"
    first = Host(url, folder, name, None)
    (folder / "1.pt").write_text("one")
    first.passes(2.0)
    for number in (2, 3):
        again = Host(url, folder, name, None)
        (folder / f"{number - 1}.pt").unlink()
        (folder / f"{number}.pt").write_text("new")
        again.passes(2.0, 10.0)
        assert set(again.remote.newest().files) == {f"{number}.pt"}
    assert again.remote.generation(name) > first.sync._manifests[-1].generation


def test_hosts_of_different_names_keep_files_of_their_own(tmp_path: Path) -> None:
    url = str(tmp_path / "url")
    for number, name in enumerate(HOST_NAMES):
        host = Host(url, tmp_path / f"checkpoints-{number}", name, None)
        (host.folder / f"{number}.pt").write_text(name or "none", errors="surrogateescape")
        host.passes(2.0)
    assert len(host.remote.newest().files) == len(HOST_NAMES)


def test_a_process_of_an_earlier_start_can_write_nothing_more(
    host: Host, tmp_path: Path, found: Found
) -> None:
    later = Host(host.url, tmp_path / "later")
    (later.folder / "2.pt").write_text("two")
    later.passes(2.0)
    (host.folder / "1.pt").write_text("one")
    with pytest.raises(FencedError, match="started again elsewhere"):
        host.passes(2.0)
    assert found() == {"2.pt": "two"}
