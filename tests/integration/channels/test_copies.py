"""Channels in object storage as copies on this host, made by the real process that makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from s3_server import S3Server
from slow_proxy import slow_proxy

from channel_copies import (
    LARGE_BYTES,
    copied,
    copying,
    files_of,
    fill,
    refused,
    some,
    train_channel,
)
from headrace.core.errors import HeadraceError
from headrace.core.process.sidecar import request_line
from headrace.data.channels.sidecar_client import END, ChannelRequest, ChannelsRequest
from headrace.data.storage import open_store
from services.object_servers import GoogleHandler, StoredObject, object_server
from small_disks import run_with_disk

KEYS = [
    "a.bin",
    "deep/er/b.bin",
    "sp ace/ü+%41#?&.txt",
    "日本/語.jpg",
    "back\\slash",
    "tail ",
    "-x",
]
SAME = os.urandom(1000)
OBJECTS = {
    "keys": {key: os.urandom(100 + number) for number, key in enumerate(KEYS)}
    | {"empty": b"", "large.tar": os.urandom(LARGE_BYTES), "8MiB": os.urandom(2**23)},
    "one": {"a/b.tar": b"data", "a/b.tar.gz": b"other"},
    "folders": {"full/a": b"a", "lone/a": b"a"},
    "first": {"a": SAME},
    "second": {"b": SAME, "c": b"c"},
    "shared": some(23),
    "changed": {f"{number}": b"before" for number in range(9)},
    "again": some(10),
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that has copied all of OBJECTS.

    Attributes:
        url: What they are below, each in a folder of its own.
        cache: The folder in which they are copied.
        folders: Where each channel was.
        files: What was in each when it was there.
        messages: What the process wrote until the job had ended.
    """

    url: str
    cache: Path
    folders: dict[str, Path]
    files: dict[str, dict[str, bytes]]
    messages: list[str]


@pytest.fixture(scope="module")
def job(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Job:
    url, cache = f"s3://{s3_server.bucket}/{uuid4().hex}", tmp_path_factory.mktemp("cache")
    places = {name: name for name in OBJECTS if name != "shared"} | {"one": "one/a/b.tar"}
    channels = [
        ChannelRequest(name=name, url=f"{url}/{place}", folder=str(cache))
        for name, place in places.items()
    ]
    channels += [
        ChannelRequest(
            name=f"share-{number}", url=f"{url}/shared", folder=str(cache), number=number, of=4
        )
        for number in range(4)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        for name, objects in OBJECTS.items():
            fill(f"{url}/{name}", objects)
        show_lone_folder(s3_server, url)
        with copying(channels) as process:
            folders = process.folders()
            files = {name: files_of(folder) for name, folder in folders.items()}
            after = {f"{number}": b"after it" for number in range(6)}
            fill(f"{url}/changed", after | {"new": b"x"})
            open_store(f"{url}/changed").delete("8")
            messages = process.end(END).splitlines()
    return Job(url=url, cache=cache, folders=folders, files=files, messages=messages)


def show_lone_folder(server: S3Server, url: str) -> None:
    """Have an empty object, its key a folder's, in place of the folder's only object."""
    open_store(f"{url}/folders").delete("lone/a")
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
    )
    prefix = f"{url.rpartition('/')[2]}/folders"
    listed = client.list_objects_v2(Bucket=server.bucket, Prefix=prefix)
    keys = [each["Key"] for each in listed["Contents"]]
    if f"{prefix}/lone/" not in keys:
        client.put_object(Bucket=server.bucket, Key=f"{prefix}/lone/")


def test_every_object_is_there_byte_for_byte_whatever_its_key(job: Job) -> None:
    assert job.files["keys"] == OBJECTS["keys"]


def test_a_url_may_name_one_object_with_those_whose_keys_begin_so(job: Job) -> None:
    assert job.files["one"] == {"b.tar": b"data", "b.tar.gz": b"other"}


def test_an_empty_object_that_shows_a_folder_is_a_folder(job: Job) -> None:
    assert job.files["folders"] == {"full/a": b"a"}
    assert (job.folders["folders"] / "lone").is_dir()


def test_channels_that_share_objects_share_disk(job: Job) -> None:
    assert (job.folders["first"] / "a").samefile(job.folders["second"] / "b")
    assert job.files["second"] == OBJECTS["second"]


def test_the_shares_of_all_hosts_are_every_object_once(job: Job) -> None:
    objects = OBJECTS["shared"]
    order = sorted(objects)
    for number in range(4):
        assert job.files[f"share-{number}"] == {key: objects[key] for key in order[number::4]}


def test_what_changed_while_it_was_held_is_named(job: Job) -> None:
    (warning,) = [line for line in job.messages if "warning" in line]
    assert "warning: channel changed: 7 objects were replaced or removed at " in warning
    assert warning.endswith("as they were before: 0, 1, 2, 3, 4 and 2 more")
    assert job.files["changed"] == OBJECTS["changed"]
    assert files_of(job.folders["changed"]) == OBJECTS["changed"]


def test_nothing_is_said_where_nothing_changed(job: Job) -> None:
    assert len(job.messages) == len(job.folders) + 2  # the warning, and what lies beside `one`
    for name in job.folders:
        lines = [line for line in job.messages if f"channel {name}: " in line]
        assert len(lines) == (2 if name in {"changed", "one"} else 1)
    assert any("channel one: 2 objects, 9 B, of" in line for line in job.messages)


def test_a_second_job_gets_nothing_while_the_listing_is_unchanged(
    job: Job, s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("again", "folders")
    wanted = [
        ChannelRequest(name=name, url=f"{job.url}/{name}", folder=str(job.cache)) for name in names
    ]
    with slow_proxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(wanted) as second:
            assert second.folders() == {name: job.folders[name] for name in names}
        assert proxy.counts()["requests"] == 2  # the listings
        fill(wanted[0].url, {"new": b"x"})
        before = proxy.counts()["requests"]
        assert files_of(copied(wanted[0].url, job.cache)) == OBJECTS["again"] | {"new": b"x"}
        assert proxy.counts()["requests"] == before + 2  # the listing, and what is new


LISTED = """
import sys
from headrace.core.errors import HeadraceError
from headrace.data.channels.listing import list_channel
from headrace.data.channels.sidecar_client import ChannelRequest
from headrace.data.storage import StorageConfig, declare_leaf

declare_leaf()
number, of, *urls = sys.argv[1:]
for url in urls:
    wanted = ChannelRequest(name="train", url=url, folder="", number=int(number), of=int(of))
    try:
        print("listed", url, list_channel(wanted, StorageConfig()), flush=True)
    except HeadraceError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
"""


def listings(urls: list[str], number: int = 0, of: int = 1) -> list[str]:
    """What a process says of URLs that it is to list, a line for each."""
    ended = subprocess.run(
        [sys.executable, "-c", LISTED, str(number), str(of), *urls],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == len(urls), ended.stderr
    return lines


@contextmanager
def google_bucket(keys: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A bucket `b` on a server that takes any key."""
    with object_server(GoogleHandler) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        stored = StoredObject(data=b"x", etag='"1"', modified="Mon, 01 Jan 2026 00:00:00 GMT")
        server.objects |= {f"b/{key}": stored for key in keys}
        yield


def test_a_key_that_would_climb_out_of_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["../../up.txt", "a/../../up.txt", "a//b", "./a"]
    names = [f"{number}/{key}" for number, key in enumerate(keys)]
    names += [f"{number}/fine.txt" for number in range(len(keys))]
    urls = [f"gs://b/{number}" for number in range(len(keys))]
    with google_bucket(names, monkeypatch):
        lines = [refused(urls[0], tmp_path / "cache"), *listings(urls[1:])]
    for url, name, line in zip(urls, names, lines, strict=False):
        assert f"UsageError: --channel train={url}: the key {name!r} has an empty, '.'" in line
        assert "Rename the object, or name a folder beside it." in line
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_object_that_is_a_folder_too_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with google_bucket(["train/a", "train/a/b"], monkeypatch):
        (line,) = listings(["gs://b/train"])
    assert "'a' is an object, and a folder too ('a/b' lies in it)" in line


def test_what_cannot_be_copied_is_reported(s3_url: str) -> None:
    expected = {
        f"{s3_url}/none": f"UsageError: --channel train={s3_url}/none: there is no object there",
        "s3://no-such-bucket/a": "NotFoundError: s3://no-such-bucket/a: the bucket does not",
        "memory://a": "UsageError: memory://a: what lies in a process's memory",
        "sss://a/b": "UsageError: sss://a/b: no store is known for sss://",
    }
    for line, message in zip(listings(list(expected)), expected.values(), strict=True):
        assert message in line


def test_more_hosts_than_objects_are_refused(job: Job, s3_url: str) -> None:
    (line,) = listings([f"{job.url}/shared"], number=23, of=24)
    assert "23 objects cannot be shared by 24 hosts" in line


def test_wrong_credentials_are_reported_and_not_shown(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    line = refused(s3_url, tmp_path)
    assert line.startswith(f"CredentialsError: {s3_url}: the server answered 403")
    assert "not-the-secret" not in line


def test_a_channel_larger_than_the_disk_is_refused_with_the_numbers(
    job: Job, s3_url: str, tmp_path: Path
) -> None:
    large = ChannelRequest(name="t", url=f"{job.url}/keys/large.tar", folder=f"{tmp_path}/disk/c")
    request = ChannelsRequest(channels=(large,))
    (tmp_path / "disk").mkdir()
    ended = run_with_disk(
        "headrace.data.channels.copy.trees", tmp_path / "disk", "8m",
        request_line(asdict(request)),
    )  # fmt: skip
    error = json.loads(ended.stdout)["error"]
    assert error["kind"] == "NoSpaceError", ended.stderr
    assert "20 MiB are to be fetched, and the disk of" in error["message"]
    assert "MiB free. Make room, or name another folder" in error["message"]


def test_a_tree_that_a_job_holds_is_never_evicted(s3_url: str, tmp_path: Path) -> None:
    size_bytes = 400_000
    held, newer = ({"a": os.urandom(size_bytes)} for _ in range(2))
    fill(f"{s3_url}/held", held)
    fill(f"{s3_url}/newer", newer)
    wanted = {name: train_channel(f"{s3_url}/{name}", tmp_path) for name in ("held", "newer")}
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
    for name in "abcd":
        fill(f"{s3_url}/{name}", objects[name])
    for names in ("ab", "ca", "d"):  # a was made first, and is in use once more
        wanted = [
            ChannelRequest(name=name, url=f"{s3_url}/{name}", folder=str(tmp_path))
            for name in names
        ]
        with copying(wanted, 1_000_000) as one:
            folders |= one.folders()
            one.end()
    assert not folders["b"].exists()
    assert all(files_of(folders[name]) == objects[name] for name in "acd")


def test_a_file_that_someone_wrote_to_is_fetched_anew(s3_url: str, tmp_path: Path) -> None:
    objects = fill(s3_url, {"a": b"what it was", "b": b"b"})
    folder = copied(s3_url, tmp_path)
    (folder / "a").chmod(0o644)
    (folder / "a").write_bytes(b"something__")
    with copying(train_channel(s3_url, tmp_path)) as running:
        folder = running.folder()
        assert files_of(folder) == objects
        (folder / "a").chmod(0o644)
        (folder / "a").write_bytes(b"something__")
        second = copied(s3_url, tmp_path)  # the running job's is left to it
        assert second != folder
        assert files_of(second) == objects


def test_a_terminal_sees_one_line_that_shows_rate_and_time_left(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(s3_url, {"large.tar": os.urandom(LARGE_BYTES), "a": b"a"})
    ours, theirs = os.openpty()
    with slow_proxy(s3_server.endpoint, rate_mb=2) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(train_channel(s3_url, tmp_path), stderr=theirs) as one:
            os.close(theirs)
            one.folder()
            shown = ""
            while ": copied in" not in shown:  # printed once the folder is whole
                shown += os.read(ours, 2**16).decode()
    os.close(ours)
    first, last = shown.split("\r\x1b[K")
    assert "headrace: channel train: " in first
    assert "/2 objects, " in first
    assert first.count("\n") == 0
    assert ": copied in" in last
