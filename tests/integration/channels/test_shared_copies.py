"""A copy whose small objects are fetched by several processes, whatever the cores of this host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from s3_server import S3Server
from slow_proxy import slow_proxy

from headrace.core.process.sidecar import request_line
from headrace.data.channels.copy.fetcher import FetchShare, split_objects
from headrace.data.storage import ObjectInfo, open_store
from jobs import alive, descendants, eventually
from small_disks import run_with_disk

MIB = 2**20
FEWEST = 160  # of a share, in place of 1,000
COUNT = 2 * FEWEST
COPY = f"""
import os, sys
from pathlib import Path
from headrace.core.errors import HeadraceError
from headrace.data.channels.copy import fetcher
from headrace.data.channels.copy.cache_dir import CacheDir
from headrace.data.channels.listing import list_channel
from headrace.data.channels.sidecar_client import ChannelRequest
from headrace.data.channels.copy.trees import CacheTrees
from headrace.data.storage import StorageConfig, declare_leaf

declare_leaf()
fetcher._LEAST_OBJECTS = {FEWEST}
config = StorageConfig()
wanted = ChannelRequest(name="train", url=sys.argv[1], folder=sys.argv[2])
listing = list_channel(wanted, config)
print("listed", flush=True)
sys.stdin.readline()
try:
    tree = CacheTrees(CacheDir(Path(wanted.folder)), None, config, processes=2)
    print(tree.hold("train", listing).folder, flush=True)
except HeadraceError as error:
    print(f"{{type(error).__name__}}: {{error}}", flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def objects(s3_server: S3Server) -> dict[str, bytes]:
    """Many small objects and a large one, below the prefix `shared`."""
    found = {f"{number % 3}/{number:05d}.bin": os.urandom(50) for number in range(COUNT)}
    found["large.bin"] = os.urandom(9 * MIB)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment().items():
            patch.setenv(name, value)
        store = open_store(f"s3://{s3_server.bucket}/shared")
        for key, data in found.items():
            store.put(key, data)
    return found


@contextmanager
def copying(url: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has listed a channel, and copies it once it is asked to."""
    process = subprocess.Popen(
        [sys.executable, "-c", COPY, url, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "listed\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def begun(process: subprocess.Popen[str]) -> int:
    """Ask a process to copy; return the one that it has started."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    (other,) = eventually(lambda: descendants(process.pid), "another process")
    return int(other)


def went_on(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process printed once it had copied with another one, and what it showed."""
    other = begun(process)
    printed, shown = process.communicate()
    eventually(lambda: not alive(other), "the end of the other process")
    return printed.strip(), shown


def test_shares_are_all_objects_once_and_large_ones_are_the_first_ones() -> None:
    sizes = [1, MIB, MIB + 1] * 2500
    infos = [
        ObjectInfo(path=str(number), size_bytes=size, etag="", modified_s=0.0)
        for number, size in enumerate(sizes)
    ]
    shares = split_objects(infos, 4)
    assert len(shares) == 4
    assert sorted(int(info.path) for share in shares for info in share) == list(range(len(sizes)))
    assert all(info.size_bytes <= MIB for share in shares[1:] for info in share)
    assert len(split_objects(infos[:1500], 4)) == 1
    assert len(split_objects(infos, 1)) == 1
    assert split_objects([], 4) == [[]]


def test_what_several_processes_fetch_is_the_channel(
    objects: dict[str, bytes], s3_server: S3Server, s3_url: str, tmp_path: Path
) -> None:
    url = f"s3://{s3_server.bucket}/shared"
    with copying(url, tmp_path) as process:
        folder, shown = went_on(process)
    files = [file for file in Path(folder).rglob("*") if file.is_file()]
    found = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    assert found == objects
    assert f"{COUNT + 1} objects, 9.02 MiB, of {url}: copied in" in shown
    assert "were here already" not in shown


def test_an_error_of_another_process_is_the_copys(
    objects: dict[str, bytes], s3_server: S3Server, s3_url: str, tmp_path: Path
) -> None:
    store = open_store(f"s3://{s3_server.bucket}/shared")
    second = sorted(objects)[1]  # the first share has every other object, from the first one on
    with copying(store.url, tmp_path) as process:
        store.put(second, b"another")
        try:
            printed, _ = went_on(process)
        finally:
            store.put(second, objects[second])
    assert printed.startswith(
        f"StorageError: {store.url}/{second}: it was replaced after the channel"
    )


def test_a_process_that_is_killed_is_reported_and_what_came_stays(
    objects: dict[str, bytes], s3_server: S3Server, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = f"s3://{s3_server.bucket}/shared"
    with slow_proxy(s3_server.endpoint, latency_ms=1500) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(url, tmp_path) as process:
            other = begun(process)
            eventually(lambda: list(tmp_path.glob("objects/*/*")), "an object")
            os.kill(other, signal.SIGKILL)
            printed, _ = process.communicate()
    assert f"StorageError: A process that fetched {FEWEST} objects to" in printed
    assert "exit code -9" in printed
    assert not list(tmp_path.glob("trees/*/complete"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    with copying(url, tmp_path) as process:
        folder, shown = process.communicate("\n")
    assert len(list(Path(folder.strip()).rglob("*.bin"))) == COUNT + 1
    assert "were here already" in shown


def test_no_process_outlives_the_one_that_copies(
    objects: dict[str, bytes], s3_server: S3Server, s3_url: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with slow_proxy(s3_server.endpoint, latency_ms=2000) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with copying(f"s3://{s3_server.bucket}/shared", tmp_path) as process:
            other = begun(process)
            process.kill()
            eventually(lambda: not alive(other), "the end of the other process")


def test_a_disk_that_is_full_is_reported_by_the_process_that_found_it_so(
    objects: dict[str, bytes], s3_server: S3Server, s3_url: str, tmp_path: Path
) -> None:
    url, disk = f"s3://{s3_server.bucket}/shared", tmp_path / "disk"
    share = FetchShare(
        base=url, tree=f"{disk}/tree", cache=f"{disk}/cache",
        objects=tuple(info for info in open_store(url).list() if info.size_bytes <= MIB),
    )  # fmt: skip
    disk.mkdir()
    ended = run_with_disk(
        "headrace.data.channels.copy.fetcher",
        disk,
        "64k",
        request_line({}) + json.dumps(share.to_fields()) + "\n",
        *(f"tree/{number}" for number in range(3)),
    )
    error = json.loads(ended.stdout.splitlines()[-1])["error"]
    assert error["kind"] == "NoSpaceError", ended.stderr
    assert "no space is left on the disk" in error["message"]


BEATS = """
import sys, time
from pathlib import Path
from headrace.data.channels.copy import trees

trees._HEARTBEAT_S = 600.0
file = Path(sys.argv[1])
with trees._heartbeat(file):
    until_s = time.monotonic() + 20
    while file.stat().st_mtime == 0 and time.monotonic() < until_s:
        time.sleep(0.01)
print(file.stat().st_mtime > 0)
"""


def test_a_copy_s_heartbeat_comes_at_once(tmp_path: Path) -> None:
    """The file of a process that was killed is old: others would take the new one for dead, too."""
    file = tmp_path / "beat"
    file.touch()
    os.utime(file, (0, 0))
    command = [sys.executable, "-c", BEATS, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"
