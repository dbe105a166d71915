"""Buckets as folders, by a real program over FUSE."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.data.channels.mount.folder_mount import Mount, MountCache, mount_url
from headrace.data.channels.mount.mount_program import NoMountError, choose_programs, is_mounted
from headrace.data.channels.resolve import ChannelMounts
from headrace.data.storage import open_store
from headrace.data.storage.urls import parse_url
from jobs import alive, clean_environment, descendants, eventually
from machine import needs, skip_without

CACHE_BYTES = 10**9
fuse = needs("fuse")
OBJECTS = {
    "a.bin": os.urandom(300_000), "deep/er/b c.bin": os.urandom(10), "empty": b"",
    "ünïcode.txt": "grüße".encode(),
}  # fmt: skip


@pytest.fixture
def url(s3_url: str) -> str:
    # In another process: this one's children are forked by some tests, and the client's threads
    # would be gone in them.
    script = (
        "import sys, json\nfrom headrace.data.storage import declare_leaf, open_store\n"
        "declare_leaf()\nstore = open_store(sys.argv[1])\n"
        "for name, data in json.loads(sys.stdin.read()).items():\n"
        "    store.put(name, bytes.fromhex(data))\n"
        "import os\nos._exit(0)\n"  # with the client's threads an exit may be an abort
    )
    objects = json.dumps({name: data.hex() for name, data in OBJECTS.items()})
    subprocess.run([sys.executable, "-c", script, s3_url], input=objects, text=True, check=True)
    return s3_url


@pytest.fixture
def mount(url: str, tmp_path: Path) -> Iterator[Mount]:
    mount = mount_url(url, tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES)
    yield mount
    mount.close()


@fuse
def test_every_object_is_a_file_with_its_bytes(mount: Mount) -> None:
    found = {
        str(path.relative_to(mount.folder)): path.read_bytes()
        for path in mount.folder.rglob("*")
        if path.is_file()
    }
    assert found == OBJECTS


@fuse
def test_nothing_can_be_written(mount: Mount) -> None:
    with pytest.raises(OSError, match="Read-only"):
        (mount.folder / "new").write_text("x")


@fuse
def test_what_was_chosen_is_written_down_without_secrets(mount: Mount) -> None:
    config = json.loads(mount.folder.with_name("mnt.json").read_text())
    assert config["program"] == "rclone"
    assert "--read-only" in config["command"]
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in json.dumps(config)


@fuse
def test_files_are_read_before_anybody_wants_them(mount: Mount, tmp_path: Path) -> None:
    def is_cached() -> bool:
        cached = (tmp_path / "cache").glob("*/unknown/vfs/**/*")
        sizes = sorted(path.stat().st_size for path in cached if path.is_file())
        return sizes == sorted(map(len, (data for data in OBJECTS.values() if data)))

    eventually(is_cached, "all objects in the cache")


@fuse
def test_a_closed_mount_is_gone_though_it_is_in_use(url: str, tmp_path: Path) -> None:
    mount = mount_url(url, tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES)
    used = os.open(mount.folder / "a.bin", os.O_RDONLY)
    mount.close()
    assert not is_mounted(mount.folder)
    assert list(mount.folder.iterdir()) == []
    with suppress(OSError):  # what it led to has gone
        os.close(used)


@fuse
def test_kill_9_of_whoever_mounted_takes_the_mount_away(url: str, tmp_path: Path) -> None:
    script = (
        "import sys, signal\nfrom pathlib import Path\nfrom headrace.data.channels.mount."
        "folder_mount import mount_url\n"
        "folder = Path(sys.argv[2])\n"
        "mount_url(sys.argv[1], folder / 'mnt', folder / 'cache', cache_bytes=10**9)\n"
        "print('up', flush=True)\nsignal.pause()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, url, str(tmp_path)],
        env=clean_environment(),
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    used = os.open(tmp_path / "mnt" / "a.bin", os.O_RDONLY)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    eventually(lambda: not is_mounted(tmp_path / "mnt"), "the end of the mount, though in use")
    with suppress(OSError):
        os.close(used)


@fuse
def test_two_mounts_at_once_keep_what_they_read_apart_and_a_later_one_finds_it(
    url: str, tmp_path: Path
) -> None:
    caches = tmp_path / "cache"
    first = mount_url(url, tmp_path / "one", caches, cache_bytes=CACHE_BYTES)
    second = mount_url(url, tmp_path / "two", caches, cache_bytes=CACHE_BYTES)
    assert (first.folder / "a.bin").read_bytes() == (second.folder / "a.bin").read_bytes()
    assert len([path for path in caches.iterdir() if path.is_dir()]) == 2
    second.close()
    first.close()
    (cached,) = [path for path in caches.iterdir() if path.is_dir()]
    third = mount_url(url, tmp_path / "one", caches, cache_bytes=CACHE_BYTES)
    assert str(cached) in (tmp_path / "one.json").read_text()
    third.close()


@fuse
def test_an_object_that_was_replaced_by_one_of_its_size_is_read_anew(
    s3_url: str, tmp_path: Path
) -> None:
    """Written in parts it has no MD5, by which the program itself would notice."""
    caches = tmp_path / "cache"

    def has_noted() -> bool:
        (noted,) = caches.glob("**/vfsMeta/**/a.bin")
        with suppress(json.JSONDecodeError):  # while the program writes it anew
            return json.loads(noted.read_text())["Rs"] is not None
        return False

    for content in (b"one", b"two"):
        open_store(s3_url).put("a.bin", content * 2**22)
        mount = mount_url(s3_url, tmp_path / "mnt", caches, cache_bytes=CACHE_BYTES)
        assert (mount.folder / "a.bin").read_bytes() == content * 2**22
        eventually(has_noted, "the note of what is cached")
        mount.close()


@fuse
def test_what_was_read_of_other_versions_is_removed(url: str, tmp_path: Path) -> None:
    def cached(identity: str | None) -> list[str]:
        mount = mount_url(
            url, tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES, identity=identity,
            reads_ahead=False,
        )  # fmt: skip
        before = [path.name for path in (tmp_path / "cache").glob("*/*/vfs/**/a.bin")]
        assert (mount.folder / "a.bin").read_bytes() == OBJECTS["a.bin"]
        mount.close()
        return before

    assert [cached(each) for each in ("1", "1", "2", None, None)] == [[], ["a.bin"], [], [], []]


@fuse
def test_what_a_killed_program_left_is_taken_away_first(url: str, tmp_path: Path) -> None:
    first = mount_url(url, tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES)
    # The program may still have the one that mounts for it.
    eventually(lambda: len(descendants(first._sidecar.pid)) == 1, "the end of fusermount3")
    (program,) = descendants(first._sidecar.pid)
    os.kill(first._sidecar.pid, signal.SIGKILL)
    first._sidecar.wait()
    eventually(lambda: not alive(program), "the end of the program, which is tied to that")
    with pytest.raises(OSError, match=r"not connected|connection abort|Input/output"):  # by its end
        list((tmp_path / "mnt").iterdir())
    second = mount_url(url, tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES)
    try:
        assert (second.folder / "a.bin").read_bytes() == OBJECTS["a.bin"]
    finally:
        second.close()


@fuse
def test_a_store_that_refuses_is_reported_in_the_programs_words(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(
        "headrace.data.channels.mount.folder_mount._UP_S", 2.0
    )  # it tries on and on
    with pytest.raises(NoMountError, match=r"rclone (ended with|showed nothing)"):
        mount_url(url, tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES)
    assert not is_mounted(tmp_path / "mnt")


def test_without_a_program_it_is_reported_which_ones_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fusermount3").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))  # beside which rclone is
    skip_without("fuse", is_there=Path("/dev/fuse").exists())
    where = parse_url("s3://bucket/train")
    with pytest.raises(NoMountError, match="none of mount-s3, rclone is on this host"):
        choose_programs(where, tmp_path, tmp_path, cache_bytes=CACHE_BYTES)
    with pytest.raises(NoMountError, match="no program shows http"):
        choose_programs(parse_url("http://h/x"), tmp_path, tmp_path, cache_bytes=CACHE_BYTES)


@pytest.mark.parametrize("program", ["mount-s3", "gcsfuse"])
def test_the_clouds_own_programs_come_first_and_get_the_prefix(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How they are called: that they do what is asked of them is not tested here."""
    skip_without("fuse", is_there=Path("/dev/fuse").exists())
    for name in ("fusermount3", "rclone", program):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    scheme = "s3" if program == "mount-s3" else "gs"
    where = parse_url(f"{scheme}://bucket/a/train")
    chosen, then = choose_programs(where, tmp_path / "mnt", tmp_path / "c", cache_bytes=2**30)
    assert then.name == "rclone"
    assert chosen.name == program
    assert "bucket" in chosen.command
    assert str(tmp_path / "mnt") in chosen.command
    prefix = "--prefix=a/train/" if program == "mount-s3" else "--only-dir=a/train"
    assert prefix in chosen.command


@pytest.mark.parametrize("limit_bytes", [None, 10**9])
def test_the_caches_of_all_mounts_together_take_a_part_of_the_disk(
    limit_bytes: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without("fuse", is_there=Path("/dev/fuse").exists())
    for name in ("fusermount3", "rclone"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    sizes = []
    for most in (1, 4):
        with pytest.raises(NoMountError, match="rclone ended with 1"):
            ChannelMounts(tmp_path / f"run-{most}", limit_bytes, most).mount_bucket("bucket")
        command = json.loads((tmp_path / f"run-{most}" / "bucket.json").read_text())["command"]
        (size,) = [each for each in command if each.startswith("--vfs-cache-max-size=")]
        sizes.append(int(size.rpartition("=")[2]))
    if limit_bytes is None:  # others use the disk meanwhile
        assert 0 < 4 * sizes[1] < 2 * sizes[0]
    else:
        assert sizes == [limit_bytes, limit_bytes]


KEEPS_THREE = """
import os, signal, sys
from pathlib import Path
from headrace.data.channels.mount.folder_mount import MountCache
kept = [MountCache(Path(sys.argv[1]), "s3://bucket/train") for _ in range(3)]
for number, cache in enumerate(kept):
    (cache.folder / "data").write_text(str(number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_killed_mounts_of_one_url_have_kept_is_used_once_and_the_rest_removed(
    tmp_path: Path,
) -> None:
    def folders() -> set[Path]:
        return {path for path in caches.iterdir() if path.is_dir()}

    caches = tmp_path / "cache"
    other = MountCache(caches, "s3://bucket/train-1")
    subprocess.run([sys.executable, "-c", KEEPS_THREE, str(caches)], check=False)
    assert len(folders()) == 4
    first = MountCache(caches, "s3://bucket/train")
    assert (first.folder / "data").read_text() == "0"
    assert folders() == {other.folder, first.folder}
    second, third = (MountCache(caches, "s3://bucket/train") for _ in range(2))
    assert folders() == {other.folder, first.folder, second.folder, third.folder}
    for cache in (first, second, third, other):
        cache.close()
    assert folders() == {other.folder, first.folder}


def test_a_url_that_names_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no store is known"):
        mount_url("ftp://x/y", tmp_path / "mnt", tmp_path / "cache", cache_bytes=CACHE_BYTES)


def _refuse_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.mark.parametrize("fault", ["folder", "channels", "mounts", "url", "lock", "no locks"])
def test_a_cache_that_cannot_be_used_is_a_reason_not_to_mount(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is mounted here: the channel is copied, or the copy says what it lacks."""
    mounts = tmp_path / "cache" / "channels" / "mounts"
    of_url = mounts / hashlib.blake2b(b"gs://bucket", digest_size=12).hexdigest()
    files = {
        "folder": tmp_path / "cache", "channels": mounts.parent, "mounts": mounts, "url": of_url,
    }  # fmt: skip
    if fault in files:
        files[fault].parent.mkdir(parents=True, exist_ok=True)
        files[fault].touch()
    elif fault == "lock":
        Path(f"{of_url}.lock").mkdir(parents=True)
    else:
        monkeypatch.setattr("fcntl.flock", _refuse_locks)
    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(NoMountError, match=r"cache.*: .+ \(HEADRACE_CACHE_DIR names another"):
        ChannelMounts(tmp_path / "run", None, 1).mount_bucket("bucket")


def test_where_there_is_no_temporary_folder_the_variable_for_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.delenv("HEADRACE_CACHE_DIR", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="Name another folder: HEADRACE_CACHE_DIR"):
        ChannelMounts(tmp_path / "run", None, 1).mount_bucket("bucket")
