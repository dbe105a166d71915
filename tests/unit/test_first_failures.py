"""What a host's first batch decides: it gets more tasks, or is reported and gets none."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer, AnswerMessage
from headrace.data.loader.workers.shared_memory import SlotPool
from headrace.offload.connection import AuxiliaryHost, HostsFile, missing_path
from headrace.offload.frames import FrameHeader, FrameKind
from headrace.offload.protocol import authenticate_client
from headrace.offload.proxy import OffloadProxy
from headrace.offload.proxy_records import OffloadRecorder
from offload_frames import FrameEnd

TASKS = 8
KEY, PATIENCE_S = b"the job's", 60.0


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
    """A host as the proxy meets it, what the proxy assigns to it, and answers to the executor."""

    def __init__(self, folder: Path) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        host = AuxiliaryHost(name="one", address="127.0.0.1", port=listener.getsockname()[1])
        known = HostsFile(key=KEY.hex(), folder=str(folder), cores=4, partitions=0, hosts=(host,))
        file = folder / "hosts.json"
        file.write_bytes(known.to_bytes())
        answers, self._answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control, control = multiprocessing.Pipe()
        self._slots = SlotPool(TASKS)
        self._answered: list[Answer] = []
        proxy = OffloadProxy(
            control, answers, self._slots.descriptors, file, OffloadRecorder(0), prints=True
        )
        self._serving = threading.Thread(target=serve, args=(proxy,))
        self._serving.start()
        with listener:
            connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else frames may wait
        keys = authenticate_client(connection, KEY, PATIENCE_S)
        self._end = FrameEnd(connection, is_server=True, keys=keys)
        self.begin(1)

    def begin(self, spec_number: int) -> None:
        """Have the host load a spec and report four cores; then send a task for each slot."""
        self.control.send(("load", spec_number, b"spec", []))
        self._end.socket.settimeout(PATIENCE_S)
        while self._end.receive()[0].kind is not FrameKind.LOADER_SPEC:
            pass
        self._end.send(FrameHeader(FrameKind.SHARE, a=5, b=4))
        self._end.send(FrameHeader(FrameKind.READY, a=spec_number))
        self.settle()
        for number in range(TASKS):
            self.control.send(("task", number, number, 0, 0, 0))
        self.settle()

    def settle(self) -> None:
        """Wait until the proxy has handled what it was sent.

        It announces its room on demand, at the end of a turn; the first one may have begun before.
        """
        self._take_answers(0)
        for _ in range(3):
            self.control.send(("again",))
            self._take_answers(PATIENCE_S)

    def _take_answers(self, longest_s: float) -> None:
        """Take answers to the executor up to the next room, or those that are there."""
        self._answers.settimeout(longest_s)
        try:
            while (answer := AnswerMessage.unpack(self._answers.recv(64)).answer) or True:
                if answer is not Answer.ROOM:
                    self._answered.append(answer)
                elif longest_s:
                    return
        except BlockingIOError:
            pass

    def answer(self, assignment: int, answer: Answer, body: bytes) -> None:
        self._end.send(FrameHeader(FrameKind.BATCH, assignment, a=answer), body)
        self.settle()

    def executor_failed_too(self, summary: str) -> None:
        """Report that the batch failed in the rank, too."""
        self.control.send(("failed", 0, summary))
        self.settle()

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
        answered, self._answered = self._answered, []
        return answered

    def close(self) -> None:
        self.control.close()
        self._serving.join()
        self._end.socket.close()
        self._slots.close()


def serve(proxy: OffloadProxy) -> None:
    """Serve until the executor is gone."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        proxy.serve()


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
    host.executor_failed_too(failure.summary)
    assert capsys.readouterr().err == "", "that it was made here is no news"


def test_a_first_batch_that_fails_otherwise_is_judged_when_it_was_made_here(
    host: Host, capsys: pytest.CaptureFixture[str]
):
    for number in range(3):
        (assignment,) = host.assigned()
        host.answer(assignment, Answer.FAILED, described("ValueError: no pixels").to_bytes())
        assert capsys.readouterr().err == ""
        host.executor_failed_too("ValueError: no pixels")
        is_reported = number in {0, 2}
        assert ("ValueError: no pixels" in capsys.readouterr().err) == is_reported
    assert Answer.RETURNED in host.answered()


def test_a_host_that_has_made_batches_is_not_given_up_for_one(host: Host, tmp_path: Path):
    host.answer(host.assigned()[0], Answer.MADE, b"batch")
    failure = failure_of(tmp_path / "sample")
    (tmp_path / "sample").touch()
    host.answer(host.assigned()[0], Answer.FAILED, failure.to_bytes())
    assert len(host.assigned()) >= 1
