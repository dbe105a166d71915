"""The offload proxy of a rank: the process that gets batches from auxiliary hosts.

It connects to the servers of all auxiliary hosts, as hosts come and go, and writes batches into the
executor's shared-memory slots. The rank controls it through a connection,
by tuples: ("load", number, loader spec, partitions of an iterable dataset), ("again",) for the
same loader spec, ("task", task, slot, payload bytes, partition, answers that it has taken in),
("reclaim", partition) to give a partition back, ("noted", answers), ("discard", task) for a batch
that it did not need, ("forget", answers), ("failed", worker, summary). It sends ("forgotten",), and
answers tasks on the socket on which workers do. It ends when the connection does.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.process.parent_death import ignore_group_signals
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer, AnswerMessage, send_unsent
from headrace.data.loader.workers.shared_memory import read_at
from headrace.offload.connection import (
    ConnectionAttempts,
    HostsFile,
    HostsFileWatcher,
    IncomingFrame,
    OpenConnection,
    ServerConnection,
    is_excluded_after_failure,
    is_excluded_at_first_batch,
    lost_line,
    refused_line,
    silence_line,
)
from headrace.offload.frames import FrameError, FrameHeader, FrameKind
from headrace.offload.proxy_records import ArrivalRows, OffloadRecorder
from headrace.offload.scheduler import BatchScheduler, PartitionScheduler

_LOST = "is lost; what it had is made by others"
_ALTERED = (
    "is connected anew, as something on the network has altered what it sent; what it had is made "
    "by others"
)
_STALLED_S = 1.0  # a poll that took longer: this process was stopped, hosts were not silent


class ServerConnections(ABC):
    """The base of a proxy: connects to servers, and finds those that are lost.

    It `prints` status lines where it is that of one rank of a host.
    """

    def __init__(self, hosts_file: Path, recorder: OffloadRecorder, *, prints: bool) -> None:
        self._hosts = HostsFileWatcher(hosts_file)
        self._recorder = recorder
        self._prints = prints
        self._scheduler: BatchScheduler | PartitionScheduler = BatchScheduler()
        self._key = b""
        self._expected_hosts = 0  # whose servers are starting up
        self._server_connections: dict[str, ServerConnection] = {}
        self._names: list[str] = []  # of hosts, as first seen: a worker's number refers to an index
        self._attempts = ConnectionAttempts()
        self._last_poll_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._attempts, selectors.EVENT_READ, None)

    @abstractmethod
    def _send_loader_spec(self, server: ServerConnection) -> None:
        """Send the current loader spec to a server that has not loaded it."""

    @abstractmethod
    def _send_recording_state(self, server: ServerConnection) -> None:
        """Tell a server whether its workers are to record, where that has changed."""

    @abstractmethod
    def _frame_memory(self, server: ServerConnection, head: FrameHeader) -> memoryview:
        """Return the memory for a frame's body."""

    @abstractmethod
    def _handle_frame(self, server: ServerConnection, frame: IncomingFrame) -> None:
        """Do what a frame asks for; raises ValueError for one that no server sends."""

    def _print_status(self, line: str) -> None:
        if self._prints:
            print_status(line)

    def _poll(self, timeout_s: float, expected_s: float) -> None:
        """Wait for frames and take them in; a wait far over `expected_s` is this process's own."""
        ready = self._selector.select(timeout_s)
        before_s, self._last_poll_s = self._last_poll_s, time.monotonic()
        if self._last_poll_s - before_s > expected_s + _STALLED_S:
            for server in self._server_connections.values():
                server.heard_s = self._last_poll_s
        for key, events in ready:
            if isinstance(key.data, ServerConnection):
                self._attend(key.data, events)

    def _update_hosts(self) -> None:
        now_s = time.monotonic()
        self._recorder.catch_up()
        if (news := self._hosts.news(now_s)) is not None:
            self._update_host_list(news)
        for ended in self._attempts.ended():
            self._joined(*ended)
        for server in list(self._server_connections.values()):
            again_s = self._scheduler.again(server.host.name)[1]
            if server.connection is None:
                server.connect(self._key, self._attempts.note)
            elif line := silence_line(now_s - server.heard_s, again_s):
                self._lose(server, line)
            else:
                self._send_recording_state(server)

    def _update_host_list(self, content: HostsFile) -> None:
        self._key = bytes.fromhex(content.key)
        self._expected_hosts = content.coming
        hosts = {host.name: host for host in content.hosts}
        for name, server in list(self._server_connections.items()):
            if hosts.get(name) != server.host:
                self._lose(server, _LOST if server.is_open else "")
                del self._server_connections[name]
        for name, host in hosts.items():
            self._server_connections.setdefault(name, ServerConnection(host))
        self._names += [name for name in hosts if name not in self._names]

    def _joined(self, server: ServerConnection, opened: OpenConnection | None) -> None:
        if self._server_connections.get(server.host.name) is not server:
            if opened is not None:
                opened.socket.close()
            return
        server.connected(opened)
        if opened is not None:
            self._selector.register(opened.socket, selectors.EVENT_READ, server)
            self._send_loader_spec(server)
        elif server.refusal and not server.was_lost:
            server.was_lost = True
            self._print_status(f"auxiliary host {server.host.name} is not used: {server.refusal}")

    def _lose(self, server: ServerConnection, line: str = "") -> None:
        """Close a connection; print the line about the host where it is lost anew."""
        batches, _ = self._scheduler.again(server.host.name)
        if server.connection is not None:
            self._selector.unregister(server.connection)
            server.lost()
            self._recorder.note_cores(server.host.name, 0)
        self._scheduler.lose(server.host.name)
        if line and not server.was_lost:
            server.was_lost = True
            self._print_status(f"auxiliary host {server.host.name} {lost_line(line, batches)}")

    def _open_connections(self) -> list[ServerConnection]:
        return [server for server in self._server_connections.values() if server.is_open]

    def _send(self, server: ServerConnection, head: FrameHeader, body: bytes = b"") -> None:
        if server.connection is None:
            return
        try:
            server.send(head, body)
        except OSError:
            self._lose(server, _LOST)
        self._watch(server)

    def _watch(self, server: ServerConnection) -> None:
        if server.connection is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if server.has_unsent else 0)
            self._selector.modify(server.connection, events, server)

    def _attend(self, server: ServerConnection, events: int) -> None:
        if not server.is_open:  # lost a moment ago
            return
        try:
            if events & selectors.EVENT_WRITE:
                server.pump()
                self._watch(server)
            if events & selectors.EVENT_READ:
                for frame in server.frames(lambda head: self._frame_memory(server, head)):
                    self._handle_frame(server, frame)
                    if server.connection is None:
                        return
        except FrameError:
            self._lose(server, _ALTERED)
        except (OSError, ValueError):
            self._lose(server, _LOST)


_POLL_S, _UNSENT_POLL_S = 0.1, 0.005
# An iteration over an iterable dataset waits so long for hosts to connect, and to load it.
_CONNECT_WAIT_S, _LOAD_WAIT_S = 20.0, 60.0
_WORKERS_PER_HOST = 1 << 20  # worker numbers of a host start at a multiple of it


class AnswerQueue:
    """The queue of answers to the executor, sent without blocking."""

    def __init__(self, answers: socket.socket) -> None:
        self._socket = answers
        self._unsent: deque[bytes] = deque()
        self._announced_room = -1

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def add(self, answer: AnswerMessage) -> None:
        """Queue an answer."""
        self._unsent.append(answer.pack())

    def announce_room(self, room: int) -> None:
        """Queue the number of tasks there is room for, if it has changed."""
        if self._announced_room != room:
            self._announced_room = room
            self.add(AnswerMessage(Answer.ROOM, 0, room, 0))

    def repeat_room(self) -> None:
        """Have the room announced next time in any case."""
        self._announced_room = -1

    def send(self) -> None:
        """Send what the socket takes; blocking could deadlock with the executor."""
        send_unsent(self._socket, self._unsent)

    def clear(self) -> None:
        """Drop the queued answers, and have the room announced again."""
        self._unsent.clear()
        self.repeat_room()


class TaskSlots:
    """The open tasks with their slots and batch specs."""

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._maps: dict[int, mmap.mmap] = {}
        # Task -> slot, and a copy of its batch spec, which the batch overwrites in the slot.
        self._tasks: dict[int, tuple[int, bytes]] = {}
        self._discard_buffer = bytearray()

    def add(self, task: int, slot: int, payload_bytes: int) -> None:
        """Add a task, whose batch spec is in its slot."""
        self._tasks[task] = slot, read_at(self._slots[slot], 0, payload_bytes)

    def batch_spec_of(self, task: int) -> bytes:
        """Return a task's batch spec."""
        return self._tasks[task][1]

    def pop(self, task: int) -> int:
        """Remove a task; return its slot."""
        return self._tasks.pop(task)[0]

    def clear(self) -> None:
        """Remove all tasks."""
        self._tasks.clear()

    def memory(self, task: int | None, size_bytes: int) -> memoryview:
        """Return the memory for a task's batch; without a task, a buffer that is never read."""
        if task is None:
            if len(self._discard_buffer) < size_bytes:
                self._discard_buffer = bytearray(size_bytes)
            return memoryview(self._discard_buffer)[:size_bytes]
        slot = self._tasks[task][0]
        mapped = self._maps.get(slot)
        if mapped is None or len(mapped) < size_bytes:
            descriptor = self._slots[slot]
            if os.fstat(descriptor).st_size < size_bytes:
                os.ftruncate(descriptor, size_bytes)
            mapped = self._maps[slot] = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        return memoryview(mapped)[:size_bytes]


class OffloadProxy(ServerConnections):
    """The proxy of one loader; `control` is its connection to the training process."""

    def __init__(
        self, control: Connection, answers: socket.socket, slots: list[int], hosts_file: Path,
        recorder: OffloadRecorder, *, prints: bool,
    ) -> None:  # fmt: skip
        super().__init__(hosts_file, recorder, prints=prints)
        self._control = control
        self._answers = AnswerQueue(answers)
        self._task_slots = TaskSlots(slots)
        self._arrivals = ArrivalRows(recorder)
        self._began_s = 0.0  # when the iteration over an iterable dataset began
        self._has_reported_no_host = False
        self._loader_spec = (0, b"")
        self._selector.register(control, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Run until the training process is gone, then raise EOFError."""
        try:
            while True:
                self._poll(_UNSENT_POLL_S if self._answers.has_unsent else _POLL_S, _POLL_S)
                self._update_hosts()
                while self._control.poll(0):
                    self._handle_message(self._control.recv())
                self._assign_tasks()
        finally:
            self._arrivals.reject_rest()

    # --- messages of the training process

    def _handle_message(self, request: tuple[object, ...]) -> None:
        match request:
            case ("load", int(number), bytes(content), list(partitions)):
                self._loader_spec = number, content
                self._recorder.begun()
                self._begin_iteration(partitions)
                for server in self._server_connections.values():
                    server.failures = 0
                    self._send_loader_spec(server)
                self._answers.repeat_room()
            case ("again",):
                self._answers.repeat_room()
            case ("task", int(number), int(slot), int(payload_bytes), int(partition), int(noted)):
                self._arrivals.confirm(noted)
                self._task_slots.add(number, slot, payload_bytes)
                self._scheduler.add(number, partition)
            case ("reclaim", int(partition)):
                self._reclaim_partition(partition)
            case ("failed", int(worker), str(summary)):
                self._note_failure(worker, summary)
            case ("noted", int(noted)):
                self._arrivals.confirm(noted)
            case ("discard", int(number)):
                self._arrivals.discard(number)
            case ("forget", int(noted)):
                self._arrivals.confirm(noted)
                self._forget()

    def _begin_iteration(self, partitions: list[int]) -> None:
        """Begin an iteration over an iterable dataset, some partitions of which go to hosts."""
        if partitions:
            if not isinstance(self._scheduler, PartitionScheduler):
                self._scheduler = PartitionScheduler()
            self._scheduler.begin(partitions)
            self._began_s = time.monotonic()

    def _reclaim_partition(self, partition: int) -> None:
        if isinstance(self._scheduler, PartitionScheduler):
            host = self._scheduler.reclaim_partition(partition)
            for server in self._open_connections():
                # The batch being received may not be needed, and its slot be another task's.
                if not self._scheduler.needs(server.incoming_assignment, server.host.name):
                    server.divert()
            if host is not None:
                self._print_status(
                    f"auxiliary host {host} is late with an iterable dataset; its part is made here"
                )

    def _forget(self) -> None:
        self._scheduler.forget()
        self._task_slots.clear()
        self._answers.clear()
        self._arrivals.reject_rest()
        for server in self._open_connections():
            server.divert()
            self._send(server, FrameHeader(FrameKind.FORGET))
        self._control.send(("forgotten",))

    def _send_loader_spec(self, server: ServerConnection) -> None:
        number, content = self._loader_spec
        if not server.is_open or not number or number in {server.loaded, server.refused}:
            return
        self._scheduler.lose(server.host.name)
        server.loaded = 0
        if isinstance(self._scheduler, PartitionScheduler):
            server.set_user_timeout()
        self._send_recording_state(server)
        self._send(server, FrameHeader(FrameKind.LOADER_SPEC, a=number), content)

    def _send_recording_state(self, server: ServerConnection) -> None:
        if self._recorder.loader is not None and server.is_recording != self._recorder.on:
            server.is_recording = self._recorder.on
            self._send(server, FrameHeader(FrameKind.RECORD, a=int(self._recorder.on)))

    # --- frames of the servers

    def _frame_memory(self, server: ServerConnection, head: FrameHeader) -> memoryview:
        """Return the memory for a frame's body: for a batch that is needed, its task's slot."""
        if head.kind is FrameKind.BATCH and head.a != Answer.RETURNED:
            task = self._scheduler.begins(head.assignment, server.host.name)
            return self._task_slots.memory(task, head.body_bytes)
        return memoryview(bytearray(head.body_bytes))

    def _handle_frame(self, server: ServerConnection, frame: IncomingFrame) -> None:
        head = frame.head
        match head.kind:
            case FrameKind.BATCH if head.a == Answer.RETURNED:
                self._scheduler.returned(head.assignment, server.host.name)
            case FrameKind.BATCH:
                self._take_batch(server, frame)
            case FrameKind.SHARE:
                server.accepted, server.cores = head.a, head.b
                self._update_task_limit(server)
            case FrameKind.READY:
                server.loaded = head.a
                server.was_missed = False
                self._update_task_limit(server)
            case FrameKind.REFUSED:
                self._exclude_host(server, head.a)
                if head.a == self._loader_spec[0]:
                    failure = BatchFailure.from_bytes(bytes(frame.body))
                    self._print_status(refused_line(server.host.name, failure))
            case FrameKind.HEARTBEAT:
                pass
            case FrameKind.ROWS:
                self._recorder.add(server.host.name, bytes(frame.body))
            case _:
                raise ValueError(f"a server does not send {head.kind.name}")

    def _update_task_limit(self, server: ServerConnection) -> None:
        is_ready = server.loaded == self._loader_spec[0] and server.loaded != server.refused
        if is_ready and server.accepted:
            limit = server.current_task_limit(is_tried=isinstance(self._scheduler, BatchScheduler))
            self._scheduler.set_task_limit(server.host.name, limit)
            self._recorder.note_cores(server.host.name, server.cores)
            if server.was_lost:
                server.was_lost = False
                self._print_status(f"auxiliary host {server.host.name} is back")

    def _take_batch(self, server: ServerConnection, frame: IncomingFrame) -> None:
        head = frame.head
        self._send(server, FrameHeader(FrameKind.RECEIVED, head.assignment))
        name = server.host.name
        requested_s = self._scheduler.requested_s(head.assignment, name)
        if isinstance(self._scheduler, PartitionScheduler):
            if head.a == Answer.FAILED:
                self._scheduler.failed(head.assignment, name)
            elif head.a == Answer.MADE:
                self._scheduler.took(head.assignment, name, head.e / 1e9)
        task = self._scheduler.arrived(head.assignment, name, time.monotonic())
        if requested_s is not None and head.a == Answer.MADE:
            self._arrivals.add(
                task,
                name,
                head.b,
                requested_s=requested_s,
                began_s=frame.began_s,
                queued_ns=head.d,
                making_ns=head.e,
                size_bytes=head.body_bytes,
            )
        elif task is not None:
            self._arrivals.add_unrecorded(task)
        if isinstance(self._scheduler, BatchScheduler) and server.loaded == self._loader_spec[0]:
            self._judge_first_batch(server, frame, is_whole=task is not None)
        if task is None:
            return
        slot = self._task_slots.pop(task)
        worker = self._names.index(name) * _WORKERS_PER_HOST + head.b
        answer = AnswerMessage(Answer(head.a), worker, task, slot, head.c, head.body_bytes - head.c)
        self._answers.add(answer)

    def _judge_first_batch(
        self, server: ServerConnection, frame: IncomingFrame, *, is_whole: bool
    ) -> None:
        """Raise the task limit of a host after its first batch; exclude it where that failed."""
        if frame.head.a == Answer.MADE and server.proven != server.loaded:
            server.proven = server.loaded
            self._update_task_limit(server)
        elif is_whole and is_excluded_at_first_batch(server, frame, self._print_status):
            self._exclude_host(server, server.loaded)

    def _exclude_host(self, server: ServerConnection, number: int) -> None:
        server.refused = number
        self._scheduler.lose(server.host.name)
        server.divert()

    def _note_failure(self, worker: int, summary: str) -> None:
        server = self._server_connections.get(self._names[worker // _WORKERS_PER_HOST])
        if server is not None and is_excluded_after_failure(
            server, self._loader_spec[0], summary, self._print_status
        ):
            self._exclude_host(server, self._loader_spec[0])

    # --- assignments

    def _assign_tasks(self) -> None:
        now_s = time.monotonic()
        self._assign_partitions(now_s)
        for assignment in self._scheduler.assign(now_s):
            batch_spec = self._task_slots.batch_spec_of(assignment.task)
            head = FrameHeader(FrameKind.BATCH_SPEC, assignment.number, a=assignment.partition)
            self._send(self._server_connections[assignment.host], head, batch_spec)
        for server in self._open_connections():
            is_used = server.refused != self._loader_spec[0]  # else it would reserve cores
            wanted = self._scheduler.wanted_batches(server.host.name) if is_used else 0
            if wanted != server.wanted:
                server.wanted = wanted
                self._send(server, FrameHeader(FrameKind.WANTED_BATCHES, a=wanted))
        for task in self._scheduler.give_back():
            slot = self._task_slots.pop(task)
            self._arrivals.add_unrecorded(task)
            self._answers.add(AnswerMessage(Answer.RETURNED, 0, task, slot))
        self._answers.announce_room(self._scheduler.room)
        self._answers.send()

    def _assign_partitions(self, now_s: float) -> None:
        """Assign an iterable dataset's partitions, once hosts have loaded it or are too late."""
        if not isinstance(self._scheduler, PartitionScheduler) or self._scheduler.is_assigned:
            return
        servers, number = self._server_connections.values(), self._loader_spec[0]
        late = [server for server in servers if server.is_coming(number)]
        wait_s = _CONNECT_WAIT_S if late or self._expected_hosts else 0.0
        if any(server.is_open for server in late):
            wait_s = _LOAD_WAIT_S
        if now_s < self._began_s + wait_s:
            return
        for server in late:  # it takes part from the next iteration on
            server.was_missed = True
        at_rank = self._scheduler.assign_all()
        if at_rank and not self._has_reported_no_host:
            self._has_reported_no_host = True
            self._print_status(
                f"no auxiliary host is there for an iterable dataset: what {at_rank} workers there "
                "would make of it in this iteration is made here"
            )


def main(
    control: int, answers: int, slots: list[int], hosts_file: str, rank: int, prints: int
) -> None:
    """Serve the executor at the other end of `control`, then exit; see `OffloadProxy`."""
    ignore_group_signals()
    proxy = OffloadProxy(
        Connection(control), socket.socket(fileno=answers), slots, Path(hosts_file),
        OffloadRecorder(rank), prints=bool(prints),
    )  # fmt: skip
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        proxy.serve()
