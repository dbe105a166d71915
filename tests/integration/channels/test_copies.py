"""Channels in object storage as copies on this host, made by the real process that makes them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from s3_server import S3Server
from slow_proxy import Faults, slow_proxy

from headrace.core.errors import HeadraceError
from headrace.data.channels.messages import END, ChannelRequest, ChannelsAnswer, ChannelsRequest
from headrace.data.storage import open_store
from jobs import alive, eventually
from services.object_servers import GoogleHandler, StoredObject, object_server
from small_disks import run_beside

KEYS = [
    "a.bin",
    "deep/er/b.bin",
    "sp ace/ü+%41#?&.txt",
    "日本/語.jpg",
    "back\\slash",
    "tail ",
    "-x",
]
LARGE_BYTES = 20 * 2**20 + 17  # three parts


class Copier:
    """A copying process, as the launcher starts it."""

    def __init__(
        self,
        wanted: list[ChannelRequest],
        limit_bytes: int | None = None,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "headrace.data.channels.copy.process",
                "--parent",
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        assert self.process.stdin is not None
        request = ChannelsRequest(channels=tuple(wanted), limit_bytes=limit_bytes)
        self.process.stdin.write(f"{request.to_json()}\n")
        self.process.stdin.flush()

    def answer(self) -> ChannelsAnswer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(self.process.stderr.read())
        return ChannelsAnswer.from_json(line)

    def folder(self, name: str = "train") -> Path:
        answer = self.answer()
        error = answer.error()
        if error is not None:
            raise error
        return Path(answer.folders[name])

    def end(self, told: str = "") -> str:
        _, said = self.process.communicate(f"{told}\n" if told else "")
        assert not self.process.returncode
        return said

    def line(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def copying(
    wanted: list[ChannelRequest], limit_bytes: int | None = None, stderr: int = subprocess.PIPE
) -> Iterator[Copier]:
    copier = Copier(wanted, limit_bytes, stderr)
    try:
        yield copier
    finally:
        copier.kill()


def stop_amid(copier: Copier, folder: Path) -> None:
    """Stop a process that has copied something and not all."""
    eventually(lambda: list(folder.glob("objects/*/*")), "an object")
    copier.process.send_signal(signal.SIGSTOP)
    assert not list(folder.glob("trees/*/complete"))


def copied(url: str, folder: Path, number: int = 0, of: int = 1) -> Path:
    with copying(
        [ChannelRequest(name="train", url=url, folder=str(folder), number=number, of=of)]
    ) as one:
        return one.folder()


def refused(url: str, folder: Path) -> str:
    with pytest.raises(HeadraceError) as failure:
        copied(url, folder)
    return f"{type(failure.value).__name__}: {failure.value}"


def fill(url: str, objects: dict[str, bytes]) -> dict[str, bytes]:
    store = open_store(url)
    for key, data in objects.items():
        store.put(key, data)
    return objects


def some(count: int, size_bytes: int = 2000) -> dict[str, bytes]:
    return {f"{number % 7}/{number:05d}.bin": os.urandom(size_bytes) for number in range(count)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def client(server: S3Server) -> Any:
    return boto3.client(
        "s3", endpoint_url=server.endpoint, aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key, region_name="us-east-1",
    )  # fmt: skip


def test_every_object_is_there_byte_for_byte_whatever_its_key(s3_url: str, tmp_path: Path) -> None:
    objects = {key: os.urandom(100 + number) for number, key in enumerate(KEYS)}
    objects |= {"empty": b"", "large.tar": os.urandom(LARGE_BYTES), "8MiB": os.urandom(2**23)}
    fill(s3_url, objects)
    assert files_of(copied(s3_url, tmp_path)) == objects


def test_a_url_may_name_one_object(s3_url: str, tmp_path: Path) -> None:
    fill(s3_url, {"a/b.tar": b"data", "a/b.tar.gz": b"other"})
    assert files_of(copied(f"{s3_url}/a/b.tar", tmp_path)) == {"b.tar": b"data"}


def test_an_empty_object_that_shows_a_folder_is_a_folder(
    s3_server: S3Server, s3_url: str, tmp_path: Path
) -> None:
    fill(s3_url, {"full/a": b"a", "lone/a": b"a"})
    open_store(s3_url).delete("lone/a")
    prefix = s3_url.rpartition("/")[2]
    listed = client(s3_server).list_objects_v2(Bucket=s3_server.bucket, Prefix=prefix)
    keys = [each["Key"] for each in listed["Contents"]]
    if f"{prefix}/lone/" not in keys:
        client(s3_server).put_object(Bucket=s3_server.bucket, Key=f"{prefix}/lone/")
    folder = copied(s3_url, tmp_path)
    assert files_of(folder) == {"full/a": b"a"}
    assert (folder / "lone").is_dir()
    assert copied(s3_url, tmp_path) == folder


@pytest.mark.parametrize("key", ["../../up.txt", "a/../../up.txt", "a//b", "./a"])
def test_a_key_that_would_climb_out_of_the_folder_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_server(GoogleHandler) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        stored = StoredObject(data=b"x", etag='"1"', modified="Mon, 01 Jan 2026 00:00:00 GMT")
        server.objects["b/train/fine.txt"] = stored
        server.objects[f"b/train/{key}"] = stored
        said = refused("gs://b/train", tmp_path / "cache")
    assert "UsageError: --channel train=gs://b/train: an object's key has an empty, '.'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_object_that_is_a_folder_too_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with object_server(GoogleHandler) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        stored = StoredObject(data=b"x", etag='"1"', modified="Mon, 01 Jan 2026 00:00:00 GMT")
        server.objects |= {"b/train/a": stored, "b/train/a/b": stored}
        said = refused("gs://b/train", tmp_path)
    assert "'a' is an object, and a folder too ('a/b' lies in it)" in said


@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_what_is_whole_survives_a_kill_and_the_rest_is_fetched(
    share: float, s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, some(600) | {"large.tar": os.urandom(LARGE_BYTES)})
    wanted = [ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))]
    with slow_proxy(s3_server.endpoint, latency_ms=60, rate_mb=1) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        copier = Copier(wanted)
        eventually(lambda: len(list(tmp_path.glob("objects/*/*"))) > 600 * share, "some objects")
        copier.kill()
    there = len(list(tmp_path.glob("objects/*/*")))
    assert not list(tmp_path.glob("trees/*/complete"))
    with slow_proxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        folder = copied(s3_url, tmp_path)
        # A listing of one page, three parts, and each small one that was not there yet.
        assert proxy.counts()["requests"] <= 1 + 3 + 601 - there
    assert files_of(folder) == objects


def test_the_parts_of_a_large_object_that_were_written_are_kept_after_a_kill(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, {"large.tar": os.urandom(8 * 2**23)})
    notes = lambda: [  # noqa: E731
        line for file in tmp_path.glob("drafts/*.parts") for line in file.read_text().splitlines()
    ]
    with slow_proxy(s3_server.endpoint, rate_mb=3) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        copier = Copier([ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))])
        eventually(lambda: any(filter(None, notes())), "a part")
        copier.kill()
    kept = {json.loads(line)[0] for line in filter(None, notes())}
    draft = next(file for file in tmp_path.glob("drafts/*") if not file.suffix)
    with draft.open("r+b") as file:  # as if one of them had not reached the disk
        file.seek(next(iter(kept)) * 2**23)
        file.write(b"\0" * 100)
    with slow_proxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        folder = copied(s3_url, tmp_path)
        assert proxy.counts()["requests"] == 2 + 8 - (len(kept) - 1) - 1
    assert files_of(folder) == objects
    assert not list(tmp_path.glob("drafts/*"))


def test_two_copies_at_once_fetch_each_object_once_and_who_waits_says_for_whom(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, some(300))
    wanted = [ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))]
    with slow_proxy(s3_server.endpoint, latency_ms=400) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(wanted) as one:
            stop_amid(one, tmp_path)
            with copying(wanted) as two:
                said = two.line()
                one.process.send_signal(signal.SIGCONT)
                folders = {one.folder(), two.folder()}
                assert proxy.counts()["requests"] == 300 + 2
    assert f"process {one.process.pid} is copying the same; waiting for it\n" in said
    assert len(folders) == 1
    assert files_of(folders.pop()) == objects


def test_whoever_waits_goes_on_where_a_killed_process_was(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, some(300))
    wanted = [ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))]
    with slow_proxy(s3_server.endpoint, latency_ms=400) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        one = Copier(wanted)
        stop_amid(one, tmp_path)
        with copying(wanted) as two:
            assert "waiting for it" in two.line()
            one.kill()
            assert files_of(two.folder()) == objects


REPLACED_MEANWHILE = """
import sys
from pathlib import Path
from headrace.data.channels.copy.cache_dir import CacheFolders
from headrace.data.channels.listing import list_channel
from headrace.data.channels.messages import Wanted
from headrace.data.channels.copy.trees import Trees
from headrace.data.storage import StorageConfig, declare_leaf, open_store

declare_leaf()
wanted, config = Wanted(name="train", url=sys.argv[1], folder=sys.argv[2]), StorageConfig()
listing = list_channel(wanted, config)
open_store(wanted.url).put(sys.argv[3], bytes(int(sys.argv[4])))
Trees(CacheFolders(Path(wanted.folder)), None, config).hold("train", listing)
"""


@pytest.mark.parametrize(("key", "size_bytes"), [("a", 100), ("a", 7), ("large", LARGE_BYTES)])
def test_an_object_replaced_between_the_listing_and_its_get_is_an_error(
    key: str, size_bytes: int, s3_url: str, tmp_path: Path
) -> None:
    fill(s3_url, {"a": os.urandom(100), "large": os.urandom(LARGE_BYTES)})
    ended = subprocess.run(
        [sys.executable, "-c", REPLACED_MEANWHILE, s3_url, str(tmp_path), key, str(size_bytes)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"{s3_url}/{key}: it was replaced after the channel was listed" in ended.stderr
    assert not list(tmp_path.glob("trees/*/complete"))


def test_a_second_job_gets_nothing_while_the_listing_is_unchanged(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, some(50))
    folder = copied(s3_url, tmp_path)
    with slow_proxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        assert copied(s3_url, tmp_path) == folder
        assert proxy.counts()["requests"] == 1  # the listing
        fill(s3_url, {"new": b"x"})
        before = proxy.counts()["requests"]
        assert files_of(copied(s3_url, tmp_path)) == objects | {"new": b"x"}
        assert proxy.counts()["requests"] == before + 2  # the listing, and what is new


def test_channels_that_share_objects_share_disk(s3_url: str, tmp_path: Path) -> None:
    same = os.urandom(1000)
    fill(s3_url, {"one/a": same, "two/b": same, "two/c": b"c"})
    one, two = (copied(f"{s3_url}/{name}", tmp_path) for name in ("one", "two"))
    assert (one / "a").samefile(two / "b")
    assert files_of(two) == {"b": same, "c": b"c"}


def test_the_shares_of_all_hosts_are_every_object_once(s3_url: str, tmp_path: Path) -> None:
    objects = fill(s3_url, some(23))
    order = sorted(objects)
    for number in range(4):
        share = files_of(copied(s3_url, tmp_path, number, 4))
        assert share == {key: objects[key] for key in order[number::4]}
    with pytest.raises(HeadraceError, match="23 objects cannot be shared by 24 hosts"):
        copied(s3_url, tmp_path, 23, 24)


def test_a_tree_that_a_job_holds_is_never_evicted(s3_url: str, tmp_path: Path) -> None:
    size_bytes = 400_000
    held, newer = ({"a": os.urandom(size_bytes)} for _ in range(2))
    fill(f"{s3_url}/held", held)
    fill(f"{s3_url}/newer", newer)
    wanted = {
        name: [ChannelRequest(name="train", url=f"{s3_url}/{name}", folder=str(tmp_path))]
        for name in ("held", "newer")
    }
    with copying(wanted["held"], 600_000) as one:
        folder = one.folder()
        with (
            copying(wanted["newer"], 600_000) as two,
            pytest.raises(HeadraceError, match="running jobs hold so much of the cache's"),
        ):
            two.folder()
        assert files_of(folder) == held
        one.end()
    with copying(wanted["newer"], 600_000) as two:
        assert files_of(two.folder()) == newer
    assert not folder.exists()


def test_trees_used_longest_ago_make_way_first(s3_url: str, tmp_path: Path) -> None:
    objects = {name: {"a": os.urandom(300_000)} for name in "abcd"}
    folders = {}
    for name in "abc":
        fill(f"{s3_url}/{name}", objects[name])
    fill(f"{s3_url}/d", objects["d"])
    for name in "abcad":
        wanted = [ChannelRequest(name="train", url=f"{s3_url}/{name}", folder=str(tmp_path))]
        with copying(wanted, 1_000_000) as one:
            folders[name] = one.folder()
            one.end()
    assert not folders["b"].exists()
    assert all(files_of(folders[name]) == objects[name] for name in "acd")


def test_a_file_that_someone_wrote_to_is_fetched_anew(s3_url: str, tmp_path: Path) -> None:
    objects = fill(s3_url, {"a": b"what it was", "b": b"b"})
    folder = copied(s3_url, tmp_path)
    (folder / "a").chmod(0o644)
    (folder / "a").write_bytes(b"something__")
    assert files_of(copied(s3_url, tmp_path)) == objects
    with copying([ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))]) as running:
        folder = running.folder()
        (folder / "a").chmod(0o644)
        (folder / "a").write_bytes(b"something__")
        beside = copied(s3_url, tmp_path)  # the running job's is left to it
        assert beside != folder
        assert files_of(beside) == objects


def test_a_bit_that_turned_on_the_way_is_noticed_and_read_again(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, {f"{number}.bin": os.urandom(5000) for number in range(20)})
    copied(f"{s3_url}/0.bin", tmp_path / "listed")  # how listings are asked for does not matter
    faults = Faults(flip=0.3, at_most=3, seed=5)
    with slow_proxy(s3_server.endpoint, faults=faults) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with suppress(HeadraceError):  # it may have been the listing
            copied(s3_url, tmp_path)
        assert proxy.counts()["flip"] > 0
        assert files_of(copied(s3_url, tmp_path)) == objects


def test_busy_servers_and_broken_answers_are_asked_again(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, some(150) | {"large.tar": os.urandom(LARGE_BYTES)})
    faults = Faults(busy=0.1, reset=0.05, short_body=0.05, seed=1)
    with slow_proxy(s3_server.endpoint, faults=faults) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        assert files_of(copied(s3_url, tmp_path)) == objects
        assert proxy.counts()["busy"] > 0


def test_a_channel_larger_than_the_disk_is_refused_with_the_numbers(
    s3_url: str, tmp_path: Path
) -> None:
    fill(s3_url, {"large.tar": os.urandom(LARGE_BYTES)})
    request = ChannelsRequest(
        channels=(ChannelRequest(name="t", url=s3_url, folder=f"{tmp_path}/disk/c"),)
    )
    (tmp_path / "disk").mkdir()
    ended = run_beside(
        "headrace.data.channels.copy.process", tmp_path / "disk", "8m", request.to_json()
    )
    answer = ChannelsAnswer.from_json(ended.stdout)
    assert answer.kind == "NoSpaceError", ended.stderr
    assert "20 MiB are to be fetched, and the disk of" in answer.message
    assert "MiB free. Make room, or name another folder" in answer.message


def test_what_changed_while_it_was_held_is_named(s3_url: str, tmp_path: Path) -> None:
    fill(s3_url, {f"{number}": b"before" for number in range(9)})
    with copying([ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))]) as one:
        folder = one.folder()
        fill(s3_url, {f"{number}": b"after it" for number in range(6)} | {"new": b"x"})
        open_store(s3_url).delete("8")
        said = one.end(END)
    assert "warning: channel train: 7 objects were replaced or removed at " in said
    assert said.endswith("as they were before: 0, 1, 2, 3, 4 and 2 more\n")
    assert (folder / "0").read_bytes() == b"before"


def test_nothing_is_said_where_nothing_changed(s3_url: str, tmp_path: Path) -> None:
    fill(s3_url, {"a": b"a"})
    with copying([ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))]) as one:
        one.folder()
        said = one.end(END)
    assert said.count("\n") == 1
    assert "channel train: 1 object, 1 B, of" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{url}/none", "UsageError: --channel train={url}/none: there is no object there"),
        ("s3://no-such-bucket/a", "NotFoundError: s3://no-such-bucket/a: the bucket does not"),
        ("memory://a", "UsageError: memory://a: what lies in a process's memory"),
        ("sss://a/b", "UsageError: sss://a/b: no store is known for sss://"),
    ],
)
def test_what_cannot_be_copied_is_told(url: str, said: str, s3_url: str, tmp_path: Path) -> None:
    assert said.format(url=s3_url) in refused(url.format(url=s3_url), tmp_path)


def test_wrong_credentials_are_told_and_not_shown(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    said = refused(s3_url, tmp_path)
    assert said.startswith(f"CredentialsError: {s3_url}: the server answered 403")
    assert "not-the-secret" not in said


def test_the_process_ends_with_whoever_started_it(s3_url: str, tmp_path: Path) -> None:
    fill(s3_url, {"a": b"a"})
    wanted = ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))
    launcher = (
        "import sys, time\n"
        "from headrace.data.channels.messages import CopyRequest\n"
        "from headrace.data.channels import copies, holding\n"
        "made = copies.Copies(CopyRequest.from_json(sys.argv[1]))\n"
        "made.make()\n"
        "print(*holding.holders(), flush=True)\n"
        "time.sleep(600)\n"
    )
    request = ChannelsRequest(channels=(wanted,)).to_json()
    with subprocess.Popen(
        [sys.executable, "-c", launcher, request], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(pid), "the copying process has ended")


def test_a_terminal_sees_one_line_that_tells_rate_and_time_left(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(s3_url, {"large.tar": os.urandom(LARGE_BYTES), "a": b"a"})
    ours, theirs = os.openpty()
    with slow_proxy(s3_server.endpoint, rate_mb=2) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(
            [ChannelRequest(name="train", url=s3_url, folder=str(tmp_path))], stderr=theirs
        ) as one:
            os.close(theirs)
            one.folder()
            shown = ""
            while ": copied in" not in shown:  # told once the folder is whole
                shown += os.read(ours, 2**16).decode()
    os.close(ours)
    first, last = shown.split("\r\x1b[K")
    assert "headrace: channel train: " in first
    assert "/2 objects, " in first
    assert first.count("\n") == 0
    assert ": copied in" in last
