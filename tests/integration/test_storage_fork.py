"""Processes: forks, the helper process, and that nothing outlives its owner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import HeadraceError, StorageError
from headrace.data.storage import Store, open_store
from headrace.data.storage.client.subprocess_client import server_pids
from jobs import alive, eventually

_FORK = multiprocessing.get_context("fork")
_DEADLINE_S = 180


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    url = str(tmp_path) if request.param == "local" else request.getfixturevalue("s3_url")
    store = open_store(url)
    store.put("x", b"123")
    return store


@pytest.fixture
def s3_store(s3_url: str) -> Store:
    store = open_store(s3_url)
    store.put("x", b"123")
    return store


def _in_child(work: Callable[[], Any], *, daemon: bool) -> Any:
    """Return what `work` returns in a forked child, or the error of ours that it raises."""
    receiver, sender = _FORK.Pipe(duplex=False)

    def run(answer: Connection) -> None:
        try:
            answer.send(work())
        except HeadraceError as error:
            answer.send(error)

    child = _FORK.Process(target=run, args=(sender,), daemon=daemon)
    child.start()
    assert receiver.poll(_DEADLINE_S), "the forked child hangs"
    answer = receiver.recv()
    child.join(_DEADLINE_S)
    assert child.exitcode == 0
    return answer


def _run(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Python program that a test may kill; it runs in an environment of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("daemon", [True, False], ids=["worker", "rank"])
def test_a_forked_child_reads_after_its_parent_did(store: Store, *, daemon: bool) -> None:
    assert bytes(store.get("x")) == b"123"
    assert _in_child(lambda: bytes(store.get("x")), daemon=daemon) == b"123"
    store.put("y", b"from the parent")
    assert _in_child(lambda: bytes(store.get("y")), daemon=daemon) == b"from the parent"
    _in_child(lambda: store.put("z", b"from the child"), daemon=daemon)
    assert bytes(store.get("z")) == b"from the child"


_RANK = """
    import sys
    from headrace.data.storage import open_store
    from headrace.data.storage.client.subprocess_client import server_pids

    assert bytes(open_store(sys.argv[1]).get("x")) == b"123"
    print(len(server_pids()), "obstore" in sys.modules)
"""


def test_a_process_that_may_fork_makes_no_request_itself(s3_store: Store) -> None:
    output, _ = _run(_RANK, s3_store.url).communicate(timeout=_DEADLINE_S)
    assert output.split() == ["1", "False"]


def test_a_forked_child_does_not_use_its_parents_helper(s3_store: Store) -> None:
    s3_store.get("x")
    (helper,) = server_pids()

    def read() -> tuple[bytes, list[int]]:
        return bytes(s3_store.get("x")), server_pids()

    assert _in_child(read, daemon=True) == (b"123", [])  # a worker makes requests itself
    data, helpers = _in_child(read, daemon=False)  # a process that may fork again has its own
    assert data == b"123"
    assert helpers
    assert helper not in helpers


_DIRECT = """
    import multiprocessing, sys
    from headrace.data.storage import declare_leaf, open_store
    from headrace.core.errors import ForkedClientError

    how, url = sys.argv[1:]
    if how == "leaf":
        declare_leaf()
    store = open_store(url, client="direct" if how == "direct" else "auto")
    assert bytes(store.get("x")) == b"123"

    def child():
        for used in (store, open_store(url)):
            try:
                used.get("x")
            except ForkedClientError as error:
                print(error, flush=True)
        print(open_store(sys.prefix).head("pyvenv.cfg").size_bytes > 0, flush=True)

    process = multiprocessing.get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join(50)  # at once: requests are tried again for 60 s
    print(process.exitcode)
"""


@pytest.mark.parametrize("how", ["leaf", "direct"])
def test_a_fork_after_direct_requests_is_an_error_at_once(how: str, s3_url: str) -> None:
    open_store(s3_url).put("x", b"123")
    output, _ = _run(_DIRECT, how, s3_url).communicate(timeout=_DEADLINE_S)
    first, second, local, code = output.splitlines()
    assert first == second
    assert "multiprocessing_context='forkserver'" in first
    assert (local, code) == ("True", "0")


def test_torch_loaders_with_forked_workers_read_epoch_after_epoch(store: Store) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for number in range(8):
        store.put(f"sample/{number}", bytes([number]))

    class Samples:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, number: int) -> int:
            return bytes(store.get_range(f"sample/{number}", 0, 1))[0]

    samples = Samples()
    assert samples[0] == 0  # in the parent, before the workers
    for epoch in range(2):
        loader = torch_data.DataLoader(
            samples, batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=120
        )
        assert [int(x) for batch in loader for x in batch] == list(range(8))
        store.put(f"checkpoint/{epoch}", b"state")  # in the parent, between epochs


def test_reads_survive_kill_9_of_the_helper(s3_store: Store) -> None:
    data = os.urandom(4_000_000)
    s3_store.put("big", data)
    (helper,) = server_pids()
    os.kill(helper, signal.SIGSTOP)  # a quick one answers all reads before it is killed
    futures = [s3_store.submit_range("big", at, 100_000) for at in range(0, len(data), 100_000)]
    os.kill(helper, signal.SIGKILL)
    assert b"".join(future.result(timeout=_DEADLINE_S) for future in futures) == data
    assert helper not in server_pids()
    eventually(lambda: not alive(helper), f"process {helper} is gone")


def test_an_upload_survives_kill_9_of_the_helper_if_its_data_can_be_had_again(
    s3_store: Store, tmp_path: Path
) -> None:
    data = os.urandom(30_000_000)
    (tmp_path / "file").write_bytes(data)
    (helper,) = server_pids()
    os.kill(helper, signal.SIGKILL)
    s3_store.put("again", tmp_path / "file")
    assert bytes(s3_store.get("again")) == data


def test_a_streamed_upload_whose_helper_dies_is_an_error_and_leaves_nothing(
    s3_store: Store,
) -> None:
    def pieces() -> Any:
        yield b"x" * 20_000_000
        os.kill(server_pids()[0], signal.SIGKILL)
        yield b"x" * 20_000_000

    with pytest.raises(StorageError, match="helper process was killed by signal 9"):
        s3_store.put("cut", pieces())
    assert [info.path for info in s3_store.list()] == ["x"]


_OWNER = """
    import sys, time
    from headrace.data.storage import open_store
    from headrace.data.storage.client.subprocess_client import server_pids

    store = open_store(sys.argv[1])
    def pieces():
        yield b"x" * 20_000_000
        print(server_pids()[0], flush=True)
        time.sleep(60)
    if sys.argv[2] == "upload":
        store.put("cut", pieces())
    store.get("x")
    print(server_pids()[0], flush=True)
"""


def test_the_helper_ends_with_its_owner(s3_store: Store) -> None:
    process = _run(_OWNER, s3_store.url, "read")
    output, _ = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 0
    eventually(lambda: not alive(int(output)), f"process {int(output)} is gone")


def test_the_helper_ends_with_its_killed_owner_and_the_upload_does_not_appear(
    s3_store: Store,
) -> None:
    process = _run(_OWNER, s3_store.url, "upload")
    assert process.stdout is not None
    helper = int(process.stdout.readline())
    process.kill()
    process.communicate()
    eventually(lambda: not alive(helper), f"process {helper} is gone")
    assert [info.path for info in s3_store.list()] == ["x"]
