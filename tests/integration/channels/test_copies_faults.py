"""Copies of channels whose processes are killed, wait for each other, or get broken answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

import pytest
from s3_server import S3Server
from slow_proxy import Faults, slow_proxy

from channel_copies import (
    LARGE_BYTES,
    Copier,
    copied,
    copying,
    files_of,
    fill,
    some,
    train_channel,
)
from headrace.core.errors import HeadraceError
from headrace.data.channels.sidecar_client import ChannelsRequest
from jobs import alive, eventually

SMALL_COUNT = 160  # 128 are fetched at once


@pytest.fixture(scope="module")
def many(s3_server: S3Server) -> tuple[str, dict[str, bytes]]:
    """The URL of many small objects and a large one, and what is in them."""
    url = f"s3://{s3_server.bucket}/{uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        return url, fill(url, some(SMALL_COUNT) | {"large.tar": os.urandom(LARGE_BYTES)})


def stop_amid(copier: Copier, folder: Path) -> None:
    """Stop a process that has copied something and not all."""
    eventually(lambda: list(folder.glob("objects/*/*")), "an object")
    copier.process.send_signal(signal.SIGSTOP)
    assert not list(folder.glob("trees/*/complete"))


def test_what_is_whole_survives_kills_and_the_rest_is_fetched(
    many: tuple[str, dict[str, bytes]], s3_server: S3Server, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url, objects = many
    there = 0
    for share in (0.05, 0.4, 0.9):
        with slow_proxy(s3_server.endpoint, latency_ms=60, rate_mb=1) as proxy:
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            copier = Copier(train_channel(url, tmp_path))
            least = max(there, SMALL_COUNT * share)
            eventually(lambda n=least: len(list(tmp_path.glob("objects/*/*"))) > n, "some objects")
            copier.kill()
            # A listing of one page, three parts, and each small one that was not there yet.
            assert proxy.counts()["requests"] <= 1 + 3 + SMALL_COUNT - there
        there = len(list(tmp_path.glob("objects/*/*")))
        assert not list(tmp_path.glob("trees/*/complete"))
    with slow_proxy(s3_server.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        folder = copied(url, tmp_path)
        assert proxy.counts()["requests"] <= 1 + 3 + SMALL_COUNT - there
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
        copier = Copier(train_channel(s3_url, tmp_path))
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
    many: tuple[str, dict[str, bytes]], s3_server: S3Server, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url, objects = many
    with slow_proxy(s3_server.endpoint, latency_ms=1500) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(train_channel(url, tmp_path)) as one:
            stop_amid(one, tmp_path)
            with copying(train_channel(url, tmp_path)) as two:
                line = two.line()
                one.process.send_signal(signal.SIGCONT)
                folders = {one.folder(), two.folder()}
                assert proxy.counts()["requests"] == SMALL_COUNT + 3 + 2
    assert f"process {one.process.pid} is copying the same; waiting for it\n" in line
    assert len(folders) == 1
    assert files_of(folders.pop()) == objects


def test_whoever_waits_goes_on_where_a_killed_process_was(
    many: tuple[str, dict[str, bytes]], s3_server: S3Server, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url, objects = many
    with slow_proxy(s3_server.endpoint, latency_ms=1500) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        one = Copier(train_channel(url, tmp_path))
        stop_amid(one, tmp_path)
        with copying(train_channel(url, tmp_path)) as two:
            assert "waiting for it" in two.line()
            one.kill()
            assert files_of(two.folder()) == objects


REPLACED_MEANWHILE = """
import os, sys
from pathlib import Path
from headrace.core.errors import HeadraceError
from headrace.data.channels.copy.cache_dir import CacheDir
from headrace.data.channels.listing import list_channel
from headrace.data.channels.sidecar_client import ChannelRequest
from headrace.data.channels.copy.trees import CacheTrees
from headrace.data.storage import StorageConfig, declare_leaf, open_store

declare_leaf()
url, folder, *replaced = sys.argv[1:]
for key, size_bytes in zip(replaced[::2], map(int, replaced[1::2])):
    wanted = ChannelRequest(name="train", url=url, folder=f"{folder}/{key}-{size_bytes}")
    listing = list_channel(wanted, StorageConfig())
    open_store(url).put(key, bytes(size_bytes))
    try:
        CacheTrees(CacheDir(Path(wanted.folder)), None, StorageConfig()).hold("train", listing)
    except HeadraceError as error:
        print(error, flush=True)
os._exit(0)  # the object store's threads may still be at work
"""


def test_an_object_replaced_between_the_listing_and_its_get_is_an_error(
    s3_url: str, tmp_path: Path
) -> None:
    fill(s3_url, {"a": os.urandom(100), "large": os.urandom(LARGE_BYTES)})
    replaced = ["a", "100", "a", "7", "large", str(LARGE_BYTES)]
    ended = subprocess.run(
        [sys.executable, "-c", REPLACED_MEANWHILE, s3_url, str(tmp_path), *replaced],
        capture_output=True,
        text=True,
        check=False,
    )
    errors = ended.stdout.splitlines()
    assert len(errors) == 3, ended.stderr
    for key, error in zip(replaced[::2], errors, strict=True):
        assert f"{s3_url}/{key}: it was replaced after the channel was listed" in error
    assert not list(tmp_path.glob("*/trees/*/complete"))


def test_a_bit_that_turned_on_the_way_is_noticed_and_read_again(
    s3_server: S3Server, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = fill(s3_url, {f"{number}.bin": os.urandom(5000) for number in range(20)})
    faults = Faults(flip=0.3, at_most=3, seed=5)
    with slow_proxy(s3_server.endpoint, faults=faults) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with suppress(HeadraceError):  # it may have been the listing
            copied(s3_url, tmp_path)
        assert proxy.counts()["flip"] > 0
        assert files_of(copied(s3_url, tmp_path)) == objects


def test_busy_servers_and_broken_answers_are_asked_again(
    many: tuple[str, dict[str, bytes]], s3_server: S3Server, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url, objects = many
    faults = Faults(busy=0.1, reset=0.05, short_body=0.05, seed=1)
    with slow_proxy(s3_server.endpoint, faults=faults) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        assert files_of(copied(url, tmp_path)) == objects
        assert proxy.counts()["busy"] > 0


def test_the_process_ends_with_whoever_started_it(s3_url: str, tmp_path: Path) -> None:
    fill(s3_url, {"a": b"a"})
    launcher = (
        "import json, sys, time\n"
        "from headrace.core.process.sidecar import sidecar_pids\n"
        "from headrace.data.channels.sidecar_client import ChannelsRequest\n"
        "from headrace.data.channels.resolve import ChannelCopies\n"
        "made = ChannelCopies(ChannelsRequest.from_fields(json.loads(sys.argv[1])))\n"
        "made.make()\n"
        "print(*sidecar_pids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    request = json.dumps(asdict(ChannelsRequest(channels=tuple(train_channel(s3_url, tmp_path)))))
    with subprocess.Popen(
        [sys.executable, "-c", launcher, request], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not alive(pid), "the copying process has ended")
