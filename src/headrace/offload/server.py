"""The offload server: the process on an auxiliary host that makes batches for ranks elsewhere.

`python -m headrace.offload.server --parent PID --announce FD --key FILE --address HOST --cores N`
starts in the job's folder, writes its port as a line of JSON to FD, and ends with its parent. FILE
holds the job's key. Each loader of a rank has a session: a worker pool that makes batches of batch
specs.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.core.files import raise_open_file_limit
from headrace.core.process.parent_death import die_with_parent, read_wrapper_arguments
from headrace.data.loader.batch_builder import PickledLoaderSpec
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.memory_budget import memory_for_batches
from headrace.data.loader.workers.messages import Answer, AnswerMessage, TaskMessage, wait_readable
from headrace.data.loader.workers.pool import WorkerPool
from headrace.offload.capacity import SessionSlots, SharedCores
from headrace.offload.frames import (
    CODE_BYTES,
    HEADER_BYTES,
    FrameCodes,
    FrameHeader,
    FrameKind,
    SessionKeys,
    check_body,
)
from headrace.offload.protocol import (
    AuthenticationError,
    LoaderSpecMessage,
    VersionError,
    authenticate_client,
)
from headrace.offload.socket_transfer import configure_socket, send_file, set_user_timeout
from headrace.offload.unauthenticated import UnauthenticatedConnections
from headrace.offload.worker_records import WorkerRecords


@dataclass(slots=True, kw_only=True, eq=False)
class SessionTask:
    """A task that a rank's proxy has assigned to this host."""

    assignment: int  # its number
    payload: bytes  # the pickled `BatchSpec`
    partition: int  # of an iterable dataset
    slot: int = -1  # for its batch; -1 until a worker gets the task
    deaths: int = 0  # of workers at it
    came_ns: int = field(default_factory=time.monotonic_ns)
    begun_ns: int = 0  # when a worker took it


_POLL_S = 0.5
_MAX_DEATHS = 3  # of workers in a row at the same task


class ServerSession:
    """The server's side of a connection to an authenticated proxy; `run` in a thread of its own."""

    def __init__(
        self, connection: socket.socket, keys: SessionKeys, cores: SharedCores, folder: Path
    ) -> None:
        self._connection = SessionConnection(connection, keys)
        self._cores = cores
        self._session_id = id(self)
        slots = 2 * (cores.count + cores.count // 2 + 2)
        self._slots = SessionSlots(slots, lambda: cores.memory_of(self._session_id))
        self._workers = SessionWorkers(cores.count, self._slots.descriptors, folder)
        self._waiting: deque[SessionTask] = deque()
        self._in_progress: dict[int, SessionTask] = {}  # by the number that workers know
        self._queued_at_workers: deque[SessionTask] = deque()  # of these, not begun yet
        self._sent: dict[int, int] = {}  # assignment -> slot, until the rank has received it
        self._next_task = 0
        self._is_first = True
        self._loader_spec = 0
        self._sent_share = 0, 0
        self._wake_lock = threading.Lock()
        self._deaths_in_a_row = 0
        self._unseen: set[int] = set()  # tasks that no worker had at the last check
        self._last_check_s = time.monotonic()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def run(self) -> None:
        """Serve until the proxy is gone."""
        self._cores.join(self._session_id, self._wake_up)
        try:
            self._connection.open()
            with suppress(OSError, ValueError, HeadraceError):  # the proxy reconnects
                while self._step():
                    pass
        finally:
            self._cores.leave(self._session_id)
            self._connection.close()
            self._workers.close()
            self._slots.close()
            with self._wake_lock:
                os.close(self._wake)
                self._wake = -1

    def _wake_up(self) -> None:
        with self._wake_lock, suppress(BlockingIOError):
            if self._wake != -1:
                os.eventfd_write(self._wake, 1)

    def _step(self) -> bool:
        """Wait for something to do, and do it; return whether the proxy is still connected."""
        also = [self._connection.fileno(), self._wake]
        if self._workers.pool is not None:
            self._take_in(*self._workers.pool.wait(_POLL_S, also))
            self._find_unseen()
        else:
            wait_readable(also, _POLL_S)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        frames = self._connection.receive()
        for frame in frames or ():
            self._handle_message(*frame)
        self._send_share()
        self._send_rows()
        self._start_tasks()
        return frames is not None

    def _send_share(self) -> None:
        self._slots.trim()
        cores, limit = self._cores.share_of(self._session_id)
        share = cores, self._slots.task_limit_within(limit)
        if share != self._sent_share:
            self._sent_share = share
            self._connection.send(FrameHeader(FrameKind.SHARE, a=share[1], b=cores))

    def _send_rows(self, *, at_once: bool = False) -> None:
        if (rows := self._workers.new_rows(at_once=at_once)) is not None:
            self._connection.send(FrameHeader(FrameKind.ROWS), rows)

    # --- frames of the proxy

    def _handle_message(self, head: FrameHeader, body: bytes) -> None:
        match head.kind:
            case FrameKind.LOADER_SPEC:
                self._load(head.a, LoaderSpecMessage.from_bytes(body))
            case FrameKind.BATCH_SPEC:
                self._waiting.append(
                    SessionTask(assignment=head.assignment, payload=body, partition=head.a)
                )
            case FrameKind.RECEIVED:
                self._slots.give(self._sent.pop(head.assignment))
            case FrameKind.WANTED_BATCHES:
                self._cores.want(self._session_id, head.a)
            case FrameKind.FORGET:
                self._return_waiting_tasks()
            case FrameKind.RECORD:
                self._workers.turn_recording(on=bool(head.a))
            case _:
                raise ValueError(f"a proxy does not send {head.kind.name}")

    def _load(self, number: int, spec: LoaderSpecMessage) -> None:
        """Have the workers make batches of another loader spec."""
        self._return_all_tasks()
        self._loader_spec = number
        self._is_first = True
        self._deaths_in_a_row = 0
        try:
            if spec.partitions:  # its rank tolerates a longer silence, too
                self._connection.tolerate_silence()
            self._workers.load(spec)
        except Exception as error:  # noqa: BLE001 - loading user code may raise anything
            self._refuse(error)
        else:
            self._connection.send(FrameHeader(FrameKind.READY, a=number))

    def _refuse(self, error: Exception) -> None:
        """End the pool, and refuse the loader spec."""
        failure = BatchFailure.of(error).to_bytes()
        self._workers.end()
        self._connection.send(FrameHeader(FrameKind.REFUSED, a=self._loader_spec), failure)

    def _return_waiting_tasks(self) -> None:
        for task in self._waiting:
            self._return_task(task)
        self._waiting.clear()

    def _return_task(self, task: SessionTask) -> None:
        self._connection.send(FrameHeader(FrameKind.BATCH, task.assignment, Answer.RETURNED))

    def _return_all_tasks(self) -> None:
        for task in self._in_progress.values():
            self._slots.give(task.slot)
            self._cores.give(self._session_id)
        self._waiting.extend(self._in_progress.values())
        self._in_progress.clear()
        self._queued_at_workers.clear()
        self._return_waiting_tasks()

    # --- tasks and workers

    def _start_tasks(self) -> None:
        """Send waiting tasks to workers, within the limits of cores and memory."""
        while self._workers.pool is not None and (startable := self._startable_tasks()):
            if not self._slots.has_room:
                return
            if not self._cores.take(self._session_id, waiting=len(startable)):
                return
            task = startable[0]
            self._waiting.remove(task)
            task.slot = self._slots.take()
            self._send_to_worker(task)

    def _startable_tasks(self) -> Sequence[SessionTask]:
        """Return the waiting tasks that may be started: one of a partition at a time."""
        if not self._workers.partitions:
            return self._waiting
        first: dict[int, SessionTask] = {}
        for task in self._waiting:
            first.setdefault(task.partition, task)
        for task in self._in_progress.values():
            first.pop(task.partition, None)
        return list(first.values())

    def _send_to_worker(self, task: SessionTask) -> None:
        assert self._workers.pool is not None
        self._slots.write(task.slot, task.payload)
        number = self._next_task
        self._next_task += 1
        self._in_progress[number] = task
        task.begun_ns = time.monotonic_ns()
        # A partition has a worker of its own, which begins at once.
        if not self._workers.partitions and len(self._in_progress) > self._cores.count:
            self._queued_at_workers.append(task)
        message = TaskMessage(number, task.slot, len(task.payload), self._is_first)
        self._is_first = False
        if self._workers.partitions:
            self._workers.pool.need(task.partition)
        self._workers.pool.send(message, task.partition)

    def _take_in(self, answers: list[AnswerMessage], deaths: list[tuple[int, int]]) -> None:
        for answer in answers:
            self._deliver(answer)
        self._replace(deaths)

    def _deliver(self, answer: AnswerMessage) -> None:
        self._deaths_in_a_row = 0
        if self._queued_at_workers:
            self._queued_at_workers.popleft().begun_ns = time.monotonic_ns()
        task = self._in_progress.pop(answer.number, None)
        if task is None:
            return  # of an earlier loader spec
        self._cores.give(self._session_id)
        if not self._in_progress and not self._waiting:
            self._send_rows(at_once=True)  # the rank may end once it has this batch
        self._send_batch(task, answer)

    def _send_batch(self, task: SessionTask, answer: AnswerMessage) -> None:
        size = answer.offset + answer.size_bytes
        if answer.answer is Answer.MADE:
            self._slots.note(size)
        head = FrameHeader(
            FrameKind.BATCH,
            task.assignment,
            a=answer.answer,
            b=answer.worker,
            c=answer.offset,
            d=task.begun_ns - task.came_ns,
            e=time.monotonic_ns() - task.begun_ns,
        )
        self._sent[task.assignment] = task.slot
        content = self._slots.content(task.slot, size)
        self._connection.send_file(head, self._slots.descriptors[task.slot], content)

    def _replace(self, deaths: list[tuple[int, int]]) -> None:
        """Replace dead workers, and send their tasks to workers again."""
        if not deaths or self._workers.pool is None:
            return
        assigned = self._workers.pool.assigned_tasks()
        self._deaths_in_a_row += len(deaths)
        if self._deaths_in_a_row > _MAX_DEATHS * self._cores.count:
            self._return_all_tasks()
            self._refuse(
                HeadraceError(
                    f"{self._deaths_in_a_row} workers in turn ended without making a batch, the "
                    f"last with status {deaths[-1][1]}"
                )
            )
            return
        for worker, status in deaths:
            self._workers.pool.fork(worker)
            for number in sorted(assigned[worker] & self._in_progress.keys()):
                task = self._in_progress.pop(number)
                task.deaths += 1
                if task.deaths < _MAX_DEATHS:
                    self._send_to_worker(task)
                else:
                    self._give_up(task, worker, status)

    def _find_unseen(self) -> None:
        """Return tasks to the rank that a worker took and died before it could report that."""
        now_s = time.monotonic()
        if self._workers.pool is None or now_s - self._last_check_s < _POLL_S:
            return
        self._last_check_s = now_s
        unseen: set[int] = set()
        if self._workers.pool.none_waiting():
            assigned = set().union(*self._workers.pool.assigned_tasks().values())
            self._take_in(*self._workers.pool.wait(0))
            unseen = self._in_progress.keys() - assigned
        for number in unseen & self._unseen:
            # Its slot is retired: if a worker has the task after all, it may still write there.
            task = self._in_progress.pop(number)
            self._slots.leave(task.slot)
            self._cores.give(self._session_id)
            self._return_task(task)
        self._unseen = unseen

    def _give_up(self, task: SessionTask, worker: int, status: int) -> None:
        error = HeadraceError(
            f"{task.deaths} workers in turn ended at this batch, the last with status {status}; "
            "-9 often means that memory ran out."
        )
        content = BatchFailure.of(error).to_bytes()
        self._slots.write(task.slot, content)
        self._cores.give(self._session_id)
        self._send_batch(task, AnswerMessage(Answer.FAILED, worker, 0, task.slot, 0, len(content)))


_HEARTBEAT_S = 0.5
_SEND_TIMEOUT_S = 60  # a rank that reads nothing for so long is gone or stopped; it reconnects
_RECEIVE_BYTES = 1 << 20
_COPIED_BYTES = 64 << 10  # of a body: copying it costs less than another call


class SessionConnection:
    """The connection of a session; heartbeats go out also while the session imports or sends."""

    def __init__(self, connection: socket.socket, keys: SessionKeys) -> None:
        self._socket = connection
        self._sent_codes = FrameCodes(keys.to_proxy)  # with the lock of sending
        self._received_codes = FrameCodes(keys.to_server)
        self._received = bytearray()
        self._head: FrameHeader | None = None  # of the frame whose body is being received
        self._send_lock = threading.Lock()
        self._is_over = threading.Event()
        self._heartbeats: threading.Thread | None = None

    def open(self) -> None:
        """Begin; raises OSError."""
        self._socket.settimeout(None)
        longest = struct.pack("ll", _SEND_TIMEOUT_S, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, longest)
        self._heartbeats = threading.Thread(target=self._send_heartbeats, name="beat", daemon=True)
        self._heartbeats.start()

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._socket.fileno()

    def tolerate_silence(self) -> None:
        """Raise the kernel's send timeout: the rank tolerates a longer silence, too."""
        set_user_timeout(self._socket, _SEND_TIMEOUT_S)

    def send(self, head: FrameHeader, body: bytes = b"") -> None:
        """Send a frame; raises OSError."""
        head = head._replace(body_bytes=len(body))
        with self._send_lock:
            self._socket.sendall(self._sent_codes.seal(head.pack(), body))

    def send_file(self, head: FrameHeader, descriptor: int, content: memoryview) -> None:
        """Send a frame whose body is the start of a file, mapped as `content`; raises OSError."""
        if len(content) <= _COPIED_BYTES:
            self.send(head, bytes(content))
            return
        head = head._replace(body_bytes=len(content))
        with self._send_lock:
            self._socket.sendall(self._sent_codes.seal(head.pack()))
            code = self._sent_codes.body()
            send_file(self._socket, descriptor, content, code)
            self._socket.sendall(code.finalize())

    def receive(self) -> list[tuple[FrameHeader, bytes]] | None:
        """Return the frames that have arrived, with their bodies; None if the proxy is gone.

        Raises ValueError (a frame is not the next one that the proxy has sent).
        """
        with suppress(BlockingIOError):
            while piece := self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                self._received += piece
            return None
        frames = []
        while (frame := self._next_frame()) is not None:
            frames.append(frame)
        return frames

    def _next_frame(self) -> tuple[FrameHeader, bytes] | None:
        if self._head is None:
            if len(self._received) < HEADER_BYTES + CODE_BYTES:
                return None
            header = self._received_codes.check_header(self._taken(HEADER_BYTES + CODE_BYTES))
            self._head = FrameHeader.unpack(header)
        head = self._head
        body = b""
        if head.body_bytes:
            if len(self._received) < head.body_bytes + CODE_BYTES:
                return None
            body = self._taken(head.body_bytes)
            code = self._received_codes.body()
            code.update(body)
            check_body(self._taken(CODE_BYTES), code)
        self._head = None
        return head, body

    def _taken(self, size: int) -> bytes:
        content = bytes(memoryview(self._received)[:size])
        del self._received[:size]
        return content

    def close(self) -> None:
        """End the heartbeats, and close the connection."""
        self._is_over.set()
        if self._heartbeats is not None:
            self._heartbeats.join()
        self._socket.close()

    def _send_heartbeats(self) -> None:
        heartbeat = FrameHeader(FrameKind.HEARTBEAT).pack()
        while not self._is_over.wait(_HEARTBEAT_S):
            if self._send_lock.acquire(blocking=False):  # else it is sending something just now
                try:
                    self._socket.sendall(self._sent_codes.seal(heartbeat))
                except OSError:
                    with suppress(OSError):  # half a frame may be sent: the connection is useless
                        self._socket.shutdown(socket.SHUT_RDWR)
                finally:
                    self._send_lock.release()


class SessionWorkers:
    """The worker pool of a session: as many workers as cores, or one a partition."""

    def __init__(self, cores: int, slots: list[int], folder: Path) -> None:
        # None before the first loader spec, and after one that could not be loaded.
        self.pool: WorkerPool | None = None
        self.partitions = 0  # of an iterable dataset; 0 for a map-style one
        self._cores = cores
        self._slots = slots
        self._folder = folder
        self._pool_arguments: object = None  # the pool's path, variables and partitions
        self._records: WorkerRecords | None = None
        self._is_recording = True  # by the proxy's last message

    def load(self, spec: LoaderSpecMessage) -> None:
        """Start workers with a loader spec; raises any error of the user's code."""
        root = Path.cwd()
        folder = spec.folder_below(root)
        variables = {**spec.variables, **self._record_variables(spec.loader)}
        pool_arguments = spec.path, variables, spec.partitions
        if self.pool is not None and not (
            pool_arguments == self._pool_arguments and self.pool.usable
        ):
            self.end()
        if self.pool is None:
            self._pool_arguments, self.partitions = pool_arguments, spec.partitions
            # Each partition of an iterable dataset has a worker, started with its first task.
            self.pool = WorkerPool(
                spec.partitions or self._cores,
                self._slots,
                rank=spec.rank,
                queues=spec.partitions or 1,
                beginning=0 if spec.partitions else None,
                path=[*(str(root / entry) for entry in spec.path), *sys.path],
                variables=variables,
            )
        self.pool.end_workers()  # so that none writes to the slots of returned tasks
        self.pool.start(
            PickledLoaderSpec(content=spec.content, folder=str(folder), variables=variables)
        )

    def _record_variables(self, loader: int | None) -> dict[str, str]:
        """Return the variables with which workers record; empty if they are not to."""
        if loader is None:
            return {}
        if self._records is None:
            try:
                self._records = WorkerRecords(loader, self._folder)
            except OSError:  # no room: batches matter more
                return {}
            self._records.turn(on=self._is_recording)
        return self._records.variables

    def turn_recording(self, *, on: bool) -> None:
        """Turn the workers' recording on or off."""
        self._is_recording = on
        if self._records is not None:
            self._records.turn(on=on)

    def new_rows(self, *, at_once: bool = False) -> bytes | None:
        """Return what workers have recorded since; see `WorkerRecords.due`."""
        return None if self._records is None else self._records.due(at_once=at_once)

    def end(self) -> None:
        """End the pool."""
        if self.pool is not None:
            self.pool.close()
            self.pool = None

    def close(self) -> None:
        """End the pool, and drop the records that were not sent."""
        self.end()
        if self._records is not None:
            self._records.close()


_AUTHENTICATION_S = 10.0
_BACKLOG = 128  # connections that were not accepted yet
_PAUSE_S = 0.1


def main(arguments: Sequence[str]) -> None:
    """Serve proxies until the parent ends."""
    options, _ = read_wrapper_arguments(arguments)
    die_with_parent(int(options["parent"]))
    raise_open_file_limit()
    key_file = Path(options["key"])
    key = key_file.read_bytes()
    cores = SharedCores(int(options["cores"]), memory_for_batches(), threading.Lock())
    strangers = UnauthenticatedConnections()
    with socket.create_server((options["address"], 0), backlog=_BACKLOG) as listening:
        port = listening.getsockname()[1]
        os.write(int(options["announce"]), json.dumps({"port": port}).encode() + b"\n")
        while True:
            try:
                connection, peer = listening.accept()
                strangers.add(connection, str(peer[0]))
                threading.Thread(
                    target=_serve,
                    args=[connection, key, cores, key_file.parent, strangers],
                    daemon=True,
                ).start()
            except (OSError, RuntimeError) as error:  # no descriptor, or no thread, is left
                sys.stderr.write(f"headrace: a rank could not be let in: {error}\n")
                time.sleep(_PAUSE_S)


def _serve(
    connection: socket.socket, key: bytes, cores: SharedCores, folder: Path,
    strangers: UnauthenticatedConnections,
) -> None:  # fmt: skip
    try:
        configure_socket(connection)
        keys = authenticate_client(connection, key, _AUTHENTICATION_S)
    except VersionError as error:
        sys.stderr.write(f"headrace: a rank could not be let in: {error}\n")
        connection.close()
        return
    except (AuthenticationError, OSError):
        connection.close()  # a stranger to the job gets no reply
        return
    finally:
        strangers.remove(connection)
    try:
        ServerSession(connection, keys, cores, folder).run()
    except OSError as error:
        sys.stderr.write(f"headrace: a rank's batches cannot be made: {error}\n")
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
