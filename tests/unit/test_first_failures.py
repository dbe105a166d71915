"""What a host's first batch decides: it gets more tasks, or is reported and gets none."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer, AnswerMessage
from headrace.data.loader.workers.shared_memory import SlotPool
from headrace.offload.connection import (
    AuxiliaryHost,
    HostsFile,
    OpenConnection,
    ServerConnection,
    missing_path,
)
from headrace.offload.frames import FrameHeader, FrameKind
from headrace.offload.proxy import OffloadProxy
from headrace.offload.worker_records import OffloadRecorder
from offload_frames import KEYS, FrameEnd

TASKS = 8


def failure_of(path: Path, *, wrapped: bool = False) -> BatchFailure:
    try:
        try:
            path.read_text()
        except OSError as error:
            if wrapped:
                raise RuntimeError("an unreadable sample") from error
            raise
    except Exception as error:  # noqa: BLE001 - as a worker does
        return BatchFailure.of(error)
    raise AssertionError(path)


def described(summary: str) -> BatchFailure:
    return BatchFailure(summary=summary, traceback="", sample="sample 0", error=None)


def test_a_path_that_is_missing_on_an_auxiliary_host_and_is_here_is_found(tmp_path: Path):
    path = tmp_path / "it's a sample"
    plain, wrapped = failure_of(path), failure_of(path, wrapped=True)
    below = failure_of(Path(__file__) / "sample")
    torchvision = described(f"RuntimeError: [Errno 2] No such file or directory: '{tmp_path}'")
    hdf5 = described(
        f"FileNotFoundError: [Errno 2] Unable to open file (unable to open file: name = "
        f"'{tmp_path}', errno = 2, error message = 'No such file or directory', flags = 0)"
    )
    assert [missing_path(each) for each in (plain, wrapped, below)] == [None] * 3, "nor is it here"
    path.touch()
    assert missing_path(plain) == plain.summary
    summary = missing_path(wrapped)
    assert summary is not None
    assert summary.startswith(
        "RuntimeError: an unreadable sample (FileNotFoundError: [Errno 2] No "
    )
    assert missing_path(torchvision) == torchvision.summary
    assert missing_path(hdf5) == hdf5.summary
    assert missing_path(described("ValueError: no '/' in the label")) is None


class Host:
    """A host as the proxy meets it, and what the proxy assigns to it and prints."""

    def __init__(self, folder: Path) -> None:
        host = AuxiliaryHost(name="one", address="127.0.0.1", port=9)
        file = folder / "hosts.json"
        file.write_bytes(
            HostsFile(
                key="00", folder=str(folder), cores=4, partitions=0, hosts=(host,)
            ).to_bytes()
        )  # fmt: skip
        proxy_end, end = socket.socketpair()
        self._end = FrameEnd(end, is_server=True)
        proxy_end.setblocking(False)
        answers, self._answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, _ = multiprocessing.Pipe()
        self._slots = SlotPool(TASKS)
        self.proxy = OffloadProxy(
            self._control, answers, self._slots.descriptors, file, OffloadRecorder(0), prints=True
        )
        self.connection = self.proxy._server_connections["one"] = ServerConnection(host)
        self.proxy._names.append("one")
        self.proxy._joined(self.connection, OpenConnection(proxy_end, KEYS))
        self.begin(1)

    def begin(self, spec_number: int) -> None:
        """Send a loader spec, and a task for each slot; the host reports four cores."""
        self.proxy._handle_message(("load", spec_number, b"spec", []))
        for number in range(TASKS):
            self.proxy._handle_message(("task", number, number, 0, 0, 0))
        self._end.send(FrameHeader(FrameKind.SHARE, a=5, b=4))
        self.send(FrameHeader(FrameKind.READY, a=spec_number))

    def send(self, head: FrameHeader, body: bytes = b"") -> None:
        self._end.send(head, body)
        self.proxy._attend(self.connection, 1)
        self.proxy._assign_tasks()

    def answer(self, assignment: int, answer: Answer, body: bytes) -> None:
        self.send(FrameHeader(FrameKind.BATCH, assignment, a=answer), body)

    def assigned(self) -> list[int]:
        """Return what it has been asked for since."""
        self._end.socket.settimeout(0)
        assignments = []
        try:
            while True:
                head, _ = self._end.receive()
                assignments += [head.assignment] if head.kind is FrameKind.BATCH_SPEC else []
        except BlockingIOError:
            return assignments

    def answered(self) -> list[Answer]:
        """Return what the executor was answered since, but for room."""
        self._answers.settimeout(0)
        answers = []
        try:
            while True:
                answers.append(AnswerMessage.unpack(self._answers.recv(64)).answer)
        except BlockingIOError:
            return [answer for answer in answers if answer is not Answer.ROOM]

    def close(self) -> None:
        self._end.socket.close()
        self._slots.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def test_a_host_has_one_order_until_it_has_made_a_batch(host: Host):
    (first,) = host.assigned()
    host.answer(first, Answer.MADE, b"batch")
    assert len(host.assigned()) == 5
    assert host.answered() == [Answer.MADE]
    host.begin(2)
    assert len(host.assigned()) == 5, "it has shown that it can"


def test_a_host_whose_first_batch_misses_a_path_is_asked_no_more(
    host: Host, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (first,) = host.assigned()
    failure = failure_of(tmp_path / "sample")
    (tmp_path / "sample").touch()
    host.answer(first, Answer.FAILED, failure.to_bytes())
    assert host.assigned() == []
    assert host.answered() == [Answer.FAILED] + [Answer.RETURNED] * (TASKS - 1)
    output = capsys.readouterr().err
    assert "a batch failed on auxiliary host one: FileNotFoundError" in output
    assert "It is asked no more. The dataset reads paths that this host has" in output
    host.proxy._handle_message(("failed", 0, failure.summary))
    assert capsys.readouterr().err == "", "that it was made here is no news"


def test_a_first_batch_that_fails_otherwise_is_judged_when_it_was_made_here(
    host: Host, capsys: pytest.CaptureFixture[str]
):
    for number in range(3):
        (assignment,) = host.assigned()
        host.answer(assignment, Answer.FAILED, described("ValueError: no pixels").to_bytes())
        assert capsys.readouterr().err == ""
        host.proxy._handle_message(("failed", 0, "ValueError: no pixels"))
        is_reported = number in {0, 2}
        assert ("ValueError: no pixels" in capsys.readouterr().err) == is_reported
    host.proxy._assign_tasks()
    assert Answer.RETURNED in host.answered()


def test_a_host_that_has_made_batches_is_not_given_up_for_one(host: Host, tmp_path: Path):
    host.answer(host.assigned()[0], Answer.MADE, b"batch")
    failure = failure_of(tmp_path / "sample")
    (tmp_path / "sample").touch()
    host.answer(host.assigned()[0], Answer.FAILED, failure.to_bytes())
    assert host.connection.refused == 0
    assert len(host.assigned()) >= 1
