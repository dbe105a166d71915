"""A bad day of the bucket: a real S3 server behind a proxy that makes faults."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from s3_server import S3Server, free_port
from slow_proxy import Faults, SlowProxy, slow_proxy

from headrace.core.errors import (
    CorruptError,
    CredentialsError,
    DeniedError,
    NotFoundError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from headrace.data.shards.shard_index import open_index
from headrace.data.storage import RetryPolicy, StorageConfig, Store, open_store
from headrace.jobs.sync.remote_copy import RemoteCopy
from headrace.jobs.sync.sync_process import FolderSync, restore
from headrace.train import Checkpointer, Restored
from packed import pack_images
from services.object_servers import GoogleHandler, object_server

_DATA = random.Random(5).randbytes(3_000_000)
_QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.1, deadline_s=20, stall_s=5)
# Which read gets a fault depends on who comes first: no read may be unlucky too often.
_PATIENT = replace(_QUICK, corrupt_attempts=20, stall_s=20)
_NO_HEDGE_S = 60.0
_BRIEF = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.1, deadline_s=1)
Behind = Callable[[Faults], SlowProxy]


@pytest.fixture
def behind(
    s3_server: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Faults], SlowProxy]]:
    """Put a faulty proxy before the server that holds the object "data"."""
    open_store(s3_url).put("data", _DATA)
    with ExitStack() as stack:

        def start(faults: Faults) -> SlowProxy:
            proxy = stack.enter_context(slow_proxy(s3_server.endpoint, faults=faults))
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
            return proxy

        yield start


def _store(url: str, retry: RetryPolicy = _QUICK, hedge_after_s: float = 2.0) -> Store:
    return open_store(url, config=StorageConfig(retry=retry, hedge_after_s=hedge_after_s))


def _read_all(store: Store, count: int = 100) -> None:
    starts = random.Random(1).sample(range(len(_DATA) - 10_000), count)
    futures = {start: store.submit_range("data", start, 10_000) for start in starts}
    assert not wait(futures.values(), timeout=60).not_done
    for start, future in futures.items():
        assert bytes(future.result()) == _DATA[start : start + 10_000]


@pytest.mark.parametrize("fault", ["busy", "reset", "short_body", "cut_range"])
def test_faults_on_a_third_of_all_requests_cost_no_byte(
    fault: str, behind: Behind, s3_url: str
) -> None:
    share = 0.3 if fault in {"busy", "reset"} else 0.1  # a wrong answer is asked for three times
    proxy = behind(Faults(**{fault: share}, seed=4))
    _read_all(_store(s3_url, _PATIENT, hedge_after_s=_NO_HEDGE_S))
    counts = proxy.counts()
    assert counts[fault] > 3
    assert counts["requests"] == 100 + counts[fault]


def test_a_mix_of_all_faults_costs_no_byte(behind: Behind, s3_url: str) -> None:
    behind(Faults(busy=0.05, reset=0.05, short_body=0.03, cut_range=0.03, seed=2))
    store = _store(s3_url, _PATIENT, hedge_after_s=_NO_HEDGE_S)
    _read_all(store)
    assert bytes(store.get("data")) == _DATA


def test_a_stalled_get_is_hedged_on_a_fresh_connection(behind: Behind, s3_url: str) -> None:
    proxy = behind(Faults(stall=1.0, stall_s=60, at_most=1))
    store = _store(s3_url, hedge_after_s=0.2)
    assert bytes(store.get_range("data", 5, 100)) == _DATA[5:105]
    counts = proxy.counts()
    assert (counts["requests"], counts["stall"]) == (2, 1)


def test_a_tail_of_slow_answers_is_cut_by_few_extra_gets(behind: Behind, s3_url: str) -> None:
    proxy = behind(Faults(stall=0.03, stall_s=60, seed=1))
    _read_all(_store(s3_url, hedge_after_s=0.5), count=300)
    counts = proxy.counts()
    assert counts["stall"] >= 3
    # The hedges that are allowed, and a retry where the hedge of a stalled GET stalled as well.
    assert counts["requests"] <= 300 + 16 + 0.05 * 300 + counts["stall"]


def test_a_server_that_stays_busy_is_given_up(behind: Behind, s3_url: str) -> None:
    proxy = behind(Faults(busy=1.0))
    with pytest.raises(ThrottledError, match=rf"{s3_url}/data \(bytes 5-14\): .* 503 SlowDown"):
        _store(s3_url, replace(_BRIEF, deadline_s=4)).get_range("data", 5, 10)
    assert 5 < proxy.counts()["busy"] < 400


def test_a_server_that_never_answers_is_given_up(behind: Behind, s3_url: str) -> None:
    behind(Faults(stall=1.0, stall_s=60))
    with pytest.raises(StorageTimeoutError, match=f"{s3_url}/data: no answer in time"):
        _store(s3_url, _BRIEF, hedge_after_s=0.2).get("data")


@pytest.mark.parametrize("fault", ["short_body", "cut_range"])
def test_an_answer_that_stays_short_is_an_error(fault: str, behind: Behind, s3_url: str) -> None:
    proxy = behind(Faults(**{fault: 1.0}))
    with pytest.raises(CorruptError, match=r"bytes 5-14.*3 attempts"):
        _store(s3_url).get_range("data", 5, 10)
    assert proxy.counts()[fault] == 3


@pytest.mark.parametrize("size", [1000, 12_000_000])
def test_uploads_survive_busy_servers_and_resets(size: int, behind: Behind, s3_url: str) -> None:
    behind(Faults(busy=0.2, reset=0.2, methods=("PUT", "POST"), seed=3))
    store, data = _store(s3_url), random.Random(size).randbytes(size)
    store.put("up", (data[at : at + 700_000] for at in range(0, size, 700_000)))
    assert bytes(store.get("up")) == data


def test_an_upload_to_a_server_that_stays_busy_leaves_nothing(behind: Behind, s3_url: str) -> None:
    behind(Faults(busy=1.0, methods=("PUT", "POST")))
    store = _store(s3_url, replace(_BRIEF, deadline_s=4))
    for size in (1000, 12_000_000):
        with pytest.raises(ThrottledError, match=f"{s3_url}/up"):
            store.put("up", b"x" * size)
    assert [info.path for info in store.list()] == ["data"]


def test_listings_go_on_after_faults(behind: Behind, s3_url: str) -> None:
    store = _store(s3_url)
    for number in range(20):
        store.put(f"many/{number:02d}", b"")
    behind(Faults(busy=0.5, at_most=5))
    assert [info.path for info in store.list("many")] == [f"many/{n:02d}" for n in range(20)]


def test_wrong_credentials_are_reported_at_once(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = open_store(s3_url)
    for call in (lambda: store.get("x"), lambda: list(store.list()), lambda: store.put("x", b"1")):
        with pytest.raises(DeniedError, match=s3_url):
            call()


@pytest.fixture
def profile(s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that credentials come from, empty so far."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path / "credentials"


def _log_in(profile: Path, key: str, secret: str) -> None:
    profile.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")


def test_credentials_renewed_in_a_profile_are_taken_up(
    s3_url: str, s3_server: S3Server, profile: Path
) -> None:
    """By streams too, which cannot be sent again: uploads in parts look before they begin."""
    _log_in(profile, s3_server.access_key, "expired")
    store, size = open_store(s3_url), 12_000_000
    with pytest.raises(CredentialsError):
        store.get("data")
    with pytest.raises(CredentialsError):
        store.put("data", bytes(size))
    _log_in(profile, s3_server.access_key, s3_server.secret_key)
    store.put("data", (bytes(1_000_000) for _ in range(12)))
    assert len(store.get("data")) == size


class _ExpiringHandler(GoogleHandler):
    """Speaks S3 as well. Refuses the old key in the midst of an upload, and has it renewed."""

    profile: Path

    def do_PUT(self) -> None:  # noqa: N802  (http.server names it)
        if "Credential=old/" in self.headers["Authorization"]:
            _log_in(self.profile, "new", "secret")
            self.answer(403, "<Error><Code>ExpiredToken</Code></Error>")
        else:
            super().do_PUT()


_UPLOAD = """
import sys
from pathlib import Path
from headrace.data.storage import open_store
file = Path(sys.argv[3])
data = file.read_bytes() if sys.argv[4] == "bytes" else file
open_store(sys.argv[1], client=sys.argv[2]).put("data", data)
print("written", flush=True)
"""


@pytest.mark.parametrize("client", ["auto", "direct"])
@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_credentials_that_expire_in_an_upload_are_renewed_and_it_is_sent_again(
    client: str, kind: str, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(random.Random(8).randbytes(12_000_000))
    handler = type("Handler", (_ExpiringHandler,), {"profile": profile})
    _log_in(profile, "old", "secret")
    with object_server(handler) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        # In a process of its own: one that calls the client itself could not fork any more.
        command = [sys.executable, "-c", _UPLOAD, "s3://bucket/folder", client, str(file), kind]
        # Not its status: the client may abort a process that ends right after a refused part.
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        assert done.stdout == "written\n"
        assert server.objects["bucket/folder/data"].data == file.read_bytes()


def test_a_bucket_that_does_not_exist_is_named(s3_url: str) -> None:
    with pytest.raises(NotFoundError, match="s3://no-such-bucket"):
        list(open_store("s3://no-such-bucket/x").list())


def test_an_endpoint_where_nothing_listens_is_reported_soon(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    retry = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.1, unreachable_s=0.5)
    with pytest.raises(StorageTimeoutError, match=r"nothing listens.*AWS_ENDPOINT_URL"):
        _store(s3_url, retry).get("x")


def test_a_server_that_comes_back_is_waited_for(
    s3_url: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(s3_url).put("data", b"123")
    target = s3_server.endpoint
    port = free_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    # However long the proxy takes to start.
    retry = replace(_QUICK, unreachable_s=100, deadline_s=100)
    pending = _store(s3_url, retry).submit_range("data", 0, 3)
    with slow_proxy(target, port=port):
        assert bytes(pending.result(timeout=120)) == b"123"


def test_a_plain_web_server_gives_whole_objects_and_says_what_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(_DATA)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        store = _store(f"http://127.0.0.1:{server.server_port}")
        try:
            assert bytes(store.get("x")) == _DATA
            with pytest.raises(StorageError, match=r"x \(bytes 5-14\): the server ignores ranges"):
                store.get_range("x", 5, 10)
            with pytest.raises(StorageError, match="the server answered 501"):
                list(store.list())
            with pytest.raises(StorageError, match="the server answered 501"):
                store.put("y", b"")
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("copies", [True, False], ids=["copied", "by range"])
@pytest.mark.parametrize(("flip", "seed"), [(1.0, 0), (0.5, 1), (0.5, 2), (0.5, 3)])
def test_a_manifest_and_an_index_that_arrive_damaged_are_read_again(
    behind: Behind, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    flip: float, seed: int, copies: bool,
) -> None:  # fmt: skip
    """What says where samples are and what they are called gets as many reads as a sample."""
    url = pack_images(tmp_path / "images", f"{s3_url}/packed", 12)
    expected = [open_index(url, cache_dir=tmp_path / "calm").locate(each).key for each in range(12)]
    folder = tmp_path / "copies"
    if not copies:
        folder.write_text("no folder for copies")
    proxy = behind(Faults(flip=flip, at_most=3, seed=seed))  # what arrives damaged is read 4 times
    index = open_index(url, cache_dir=folder)
    assert [index.locate(each).key for each in range(12)] == expected
    assert proxy.counts()["flip"] > 0


@pytest.mark.parametrize("damaged", ["commit.json", ".distcp", ".metadata"])
def test_a_checkpoint_that_arrives_damaged_is_read_again(
    behind: Behind, s3_url: str, damaged: str
) -> None:
    model = torch.nn.Linear(4, 4)
    Checkpointer(s3_url).save(3, model, extra={"position": 96})
    proxy = behind(Faults(flip=1.0, path=damaged, at_most=3))
    other = torch.nn.Linear(4, 4)
    assert Checkpointer(s3_url).restore(other) == Restored(step=3, extra={"position": 96})
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert proxy.counts()["flip"] == 3


@pytest.mark.parametrize("damaged", ["/manifests/", "/files/"])
def test_a_kept_folder_that_arrives_damaged_is_read_again(
    behind: Behind, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    monkeypatch.setattr("headrace.jobs.sync.restore._STATUS_EVERY_S", 0.0)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    remote = RemoteCopy(s3_url, print)
    sync = FolderSync(remote, folder, "host", (), print)
    sync.begin()
    for name in ("1.pt", "2.pt"):
        (folder / name).write_bytes(_DATA)
        sync.one_pass(at_the_end=True)
    proxy = behind(Faults(flip=1.0, path=damaged, at_most=3))
    messages: list[str] = []
    restore(RemoteCopy(s3_url, messages.append), tmp_path / "elsewhere", messages.append)
    assert (tmp_path / "elsewhere" / "2.pt").read_bytes() == _DATA
    assert not any("damaged" in message for message in messages)
    arrived = re.findall(r"([0-9.]+) MB of 6\.0 MB are here", "\n".join(messages))
    assert 0 < max(map(float, arrived)) <= 6.0
    assert proxy.counts()["flip"] == 3
