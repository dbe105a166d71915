"""The offload proxy of a rank: the process that gets batches from auxiliary hosts.

It puts them into shared-memory slots. It is controlled through a connection, by tuples: ("recipe",
number, bytes, partitions of an iterable dataset), ("again",) for the same one, ("ticket", number,
slot, payload bytes, partition), ("take home", partition), ("forget",), ("failed", worker, summary).
It reports ("forgotten",), and answers tasks on the socket where workers do. It ends with the
connection.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import selectors
import socket
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.core.process.parent_death import ignore_group_signals
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.workers.messages import Answer, AnswerMessage
from headrace.data.loader.workers.shared_memory import read_at
from headrace.offload.connection import (
    ConnectionAttempts,
    IncomingFrame,
    ServerConnection,
    silence_limit_s,
)
from headrace.offload.host_status import (
    HostStatusPrinter,
    is_excluded_after_failure,
    is_excluded_at_first_batch,
    late_line,
    lost_line,
    no_host_line,
    refused_line,
    repeated_batches_clause,
    returned_line,
    silent_line,
)
from headrace.offload.hosts_file import HostsFile, HostsFileWatcher
from headrace.offload.partitions import PartitionScheduler
from headrace.offload.protocol import FrameHeader, FrameKind, encode_frame
from headrace.offload.scheduler import BatchScheduler
from headrace.offload.worker_records import OffloadRecorder


class AnswerQueue:
    """What a receiver has to say.

    Args:
        taking: Takes it.
    """

    def __init__(self, taking: socket.socket) -> None:
        self._taking = taking
        self._unsent: deque[bytes] = deque()
        self._announced_room = -1

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._unsent)

    def add(self, answer: AnswerMessage) -> None:
        """Have an answer sent after all others."""
        self._unsent.append(answer.pack())

    def announce_room(self, room: int) -> None:
        """Have it told how many tickets there is room for, where that has changed."""
        if self._announced_room != room:
            self._announced_room = room
            self.add(AnswerMessage(Answer.ROOM, 0, room, 0, 0, 0))

    def repeat_room(self) -> None:
        """Have that told next time, changed or not."""
        self._announced_room = -1

    def send(self) -> None:
        """Send what there is room for: a blocking send could wait for who waits for us."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._taking.send(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()

    def clear(self) -> None:
        """Forget what waits, and what was told."""
        self._unsent.clear()
        self.repeat_room()


class TaskSlots:
    """The tickets under way, with their slots and their orders.

    Args:
        slots: Descriptors of the slots' files.
    """

    def __init__(self, slots: list[int]) -> None:
        self._slots = slots
        self._maps: dict[int, mmap.mmap] = {}
        # Ticket -> its slot and its order, which the batch overwrites there.
        self._placed: dict[int, tuple[int, bytes]] = {}
        self._trash = bytearray()

    def add(self, ticket: int, slot: int, payload_bytes: int) -> None:
        """Take a ticket, whose order lies in its slot."""
        self._placed[ticket] = slot, read_at(self._slots[slot], 0, payload_bytes)

    def batch_spec_of(self, ticket: int) -> bytes:
        """Return a ticket's order."""
        return self._placed[ticket][1]

    def pop(self, ticket: int) -> int:
        """Let go of a ticket; return its slot."""
        return self._placed.pop(ticket)[0]

    def clear(self) -> None:
        """Let go of all tickets."""
        self._placed.clear()

    def memory(self, ticket: int | None, size_bytes: int) -> memoryview:
        """Return where a ticket's batch goes; that of no ticket goes where nobody looks."""
        if ticket is None:
            if len(self._trash) < size_bytes:
                self._trash = bytearray(size_bytes)
            return memoryview(self._trash)[:size_bytes]
        slot = self._placed[ticket][0]
        mapped = self._maps.get(slot)
        if mapped is None or len(mapped) < size_bytes:
            if os.fstat(self._slots[slot]).st_size < size_bytes:
                os.ftruncate(self._slots[slot], size_bytes)
            mapped = self._maps[slot] = mmap.mmap(
                self._slots[slot], os.fstat(self._slots[slot]).st_size
            )
        return memoryview(mapped)[:size_bytes]


_POLL_S, _UNSENT_POLL_S = 0.1, 0.005
# An iterable dataset is begun without hosts that are not there, or have not loaded it, by then.
_CONNECT_WAIT_S, _LOAD_WAIT_S = 20.0, 60.0
_STALLED_S = 1.0  # this process itself was stopped meanwhile: nobody else is to blame
_WORKERS_PER_HOST = 1 << 20  # a host's workers are counted from a multiple of it


class OffloadProxy:
    """Serves one loader.

    Args:
        control: The training process is at the other end.
        answers: Takes answers.
        slots: Descriptors of the slots' files.
        hosts_file: Tells of the auxiliary hosts.
        accounts: Where it notes what they do.
        tells: Tells of hosts that are lost: one of a host's ranks does.
    """

    def __init__(
        self, control: Connection, answers: socket.socket, slots: list[int], hosts_file: Path,
        accounts: OffloadRecorder, *, tells: bool,
    ) -> None:  # fmt: skip
        self._control = control
        self._answers = AnswerQueue(answers)
        self._landing = TaskSlots(slots)
        self._hosts = HostsFileWatcher(hosts_file)
        self._accounts = accounts
        self._key = b""
        self._dealer: BatchScheduler | PartitionScheduler = BatchScheduler()
        self._coming = 0  # hosts that are not there yet
        self._began_s = 0.0  # the iteration over an iterable dataset
        self._has_reported_no_host = False
        self._server_connections: dict[str, ServerConnection] = {}
        self._names: list[str] = []  # in the order they were first seen
        self._attempts = ConnectionAttempts()
        self._loader_spec = (0, b"")
        self._tell = HostStatusPrinter(on=tells)
        self._looked_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._selector.register(self._attempts, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve until the training process is gone (EOFError)."""
        while True:
            ready = self._selector.select(_UNSENT_POLL_S if self._answers.has_unsent else _POLL_S)
            self._excuse_own_stall()
            for key, events in ready:
                if isinstance(key.data, ServerConnection):
                    self._attend(key.data, events)
            self._update_hosts()
            while self._control.poll(0):
                self._handle_message(self._control.recv())
            self._assign_tasks()

    def _excuse_own_stall(self) -> None:
        before_s, self._looked_s = self._looked_s, time.monotonic()
        if self._looked_s - before_s > _POLL_S + _STALLED_S:
            for peer in self._server_connections.values():
                peer.heard_s = self._looked_s

    # --- what the training process says

    def _handle_message(self, request: tuple[object, ...]) -> None:
        match request:
            case ("recipe", int(number), bytes(content), list(strands)):
                self._loader_spec = number, content
                self._accounts.begun()
                self._begin(strands)
                for peer in self._server_connections.values():
                    peer.failures = 0
                    self._send_loader_spec(peer)
                self._answers.repeat_room()
            case ("again",):
                self._answers.repeat_room()
            case ("ticket", int(number), int(slot), int(payload_bytes), int(partition)):
                self._landing.add(number, slot, payload_bytes)
                self._dealer.add(number, partition)
            case ("take home", int(partition)):
                self._reclaim_partition(partition)
            case ("failed", int(worker), str(summary)):
                self._note_failure(worker, summary)
            case _:
                self._forget()

    def _begin(self, strands: list[int]) -> None:
        """Begin an iteration over an iterable dataset, of which hosts have strands."""
        if strands:
            if not isinstance(self._dealer, PartitionScheduler):
                self._dealer = PartitionScheduler()
            self._dealer.begin(strands)
            self._began_s = time.monotonic()

    def _reclaim_partition(self, partition: int) -> None:
        if isinstance(self._dealer, PartitionScheduler):
            host = self._dealer.reclaim_partition(partition)
            for peer in self._open_connections():
                # What is arriving may be of no use any more, and its place be another's.
                if not self._dealer.needs(peer.incoming_assignment, peer.host.name):
                    peer.divert()
            if host is not None:
                self._tell(late_line(host))

    def _forget(self) -> None:
        self._dealer.forget()
        self._landing.clear()
        self._answers.clear()
        for peer in self._open_connections():
            peer.divert()
            self._send(peer, encode_frame(FrameKind.FORGET))
        self._control.send(("forgotten",))

    def _send_loader_spec(self, peer: ServerConnection) -> None:
        number, content = self._loader_spec
        if not peer.is_open or not number or number in {peer.recipe, peer.refused}:
            return
        self._dealer.lose(peer.host.name)
        peer.recipe = 0
        if isinstance(self._dealer, PartitionScheduler):
            peer.set_user_timeout()
        self._send_recording_state(peer)
        self._send(peer, encode_frame(FrameKind.LOADER_SPEC, content, a=number))

    def _send_recording_state(self, peer: ServerConnection) -> None:
        if self._accounts.loader is not None and peer.records != self._accounts.on:
            peer.records = self._accounts.on
            self._send(peer, encode_frame(FrameKind.RECORD, a=int(self._accounts.on)))

    # --- hosts come and go

    def _update_hosts(self) -> None:
        now_s = time.monotonic()
        self._accounts.catch_up()
        if (news := self._hosts.news(now_s)) is not None:
            self._hear(news)
        for ended in self._attempts.ended():
            self._joined(*ended)
        for peer in list(self._server_connections.values()):
            longest_s = silence_limit_s(self._dealer.again(peer.host.name)[1])
            if peer.connection is None:
                peer.connect(self._key, self._attempts.note)
            elif now_s - peer.heard_s > longest_s:
                self._lose(peer, silent_line(peer.host.name, longest_s))
            else:
                self._send_recording_state(peer)

    def _hear(self, news: HostsFile) -> None:
        self._key = bytes.fromhex(news.key)
        self._coming = news.coming
        hosts = {host.name: host for host in news.hosts}
        for name, peer in list(self._server_connections.items()):
            if hosts.get(name) != peer.host:
                self._lose(peer, "" if peer.connection is None else lost_line(name))
                del self._server_connections[name]
        for name, host in hosts.items():
            self._server_connections.setdefault(name, ServerConnection(host))
        self._names += [name for name in hosts if name not in self._names]

    def _joined(self, peer: ServerConnection, connection: socket.socket | None) -> None:
        if self._server_connections.get(peer.host.name) is not peer:
            if connection is not None:
                connection.close()
            return
        peer.connected(connection)
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._send_loader_spec(peer)

    def _lose(self, peer: ServerConnection, told: str = "") -> None:
        batches, _ = self._dealer.again(peer.host.name)
        if peer.connection is not None:
            self._selector.unregister(peer.connection)
            peer.lost()
            self._accounts.note_cores(peer.host.name, 0)
        self._dealer.lose(peer.host.name)
        if told and not peer.was_lost:
            peer.was_lost = True
            self._tell(told + repeated_batches_clause(batches))

    def _open_connections(self) -> list[ServerConnection]:
        return [peer for peer in self._server_connections.values() if peer.is_open]

    def _send(self, peer: ServerConnection, content: bytes) -> None:
        if peer.connection is None:
            return
        try:
            peer.send(content)
        except OSError:
            self._lose(peer, lost_line(peer.host.name))
        self._watch(peer)

    def _watch(self, peer: ServerConnection) -> None:
        if peer.connection is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_unsent else 0)
            self._selector.modify(peer.connection, events, peer)

    # --- what hosts say

    def _attend(self, peer: ServerConnection, events: int) -> None:
        if not peer.is_open:  # lost a moment ago
            return
        try:
            if events & selectors.EVENT_WRITE:
                peer.pump()
                self._watch(peer)
            if events & selectors.EVENT_READ:
                for arrived in peer.frames(lambda head: self._place(peer, head)):
                    self._take_in(peer, arrived)
                    if peer.connection is None:
                        return
        except (OSError, ValueError):
            self._lose(peer, lost_line(peer.host.name))

    def _place(self, peer: ServerConnection, head: FrameHeader) -> memoryview:
        """Return where a frame's body goes: into the slot of its ticket, if that is needed."""
        if head.kind is FrameKind.BATCH and head.a != Answer.RETURNED:
            return self._landing.memory(
                self._dealer.begins(head.ask, peer.host.name), head.body_bytes
            )
        return memoryview(bytearray(head.body_bytes))

    def _take_in(self, peer: ServerConnection, arrived: IncomingFrame) -> None:
        head = arrived.head
        match head.kind:
            case FrameKind.BATCH if head.a == Answer.RETURNED:
                self._dealer.returned(head.ask, peer.host.name)
            case FrameKind.BATCH:
                self._take_batch(peer, arrived)
            case FrameKind.SHARE:
                peer.orders, peer.cores = head.a, head.b
                self._use(peer)
            case FrameKind.READY:
                peer.recipe = head.a
                peer.was_missed = False
                self._use(peer)
            case FrameKind.REFUSED:
                self._exclude_host(peer, head.a)
                if head.a == self._loader_spec[0]:
                    failure = BatchFailure.from_bytes(bytes(arrived.body))
                    self._tell(refused_line(peer.host.name, failure))
            case FrameKind.HEARTBEAT:
                pass
            case FrameKind.ROWS:
                self._accounts.add(peer.host.name, bytes(arrived.body))
            case _:
                raise ValueError(f"a station does not say {head.kind.name}")

    def _use(self, peer: ServerConnection) -> None:
        if peer.recipe == self._loader_spec[0] and peer.recipe != peer.refused and peer.orders:
            orders = peer.current_task_limit(is_tried=isinstance(self._dealer, BatchScheduler))
            self._dealer.set_task_limit(peer.host.name, orders)
            self._accounts.note_cores(peer.host.name, peer.cores)
            if peer.was_lost:
                peer.was_lost = False
                self._tell(returned_line(peer.host.name))

    def _take_batch(self, peer: ServerConnection, arrived: IncomingFrame) -> None:
        head = arrived.head
        self._send(peer, encode_frame(FrameKind.RECEIVED, ask=head.ask))
        requested_s = self._dealer.requested_s(head.ask, peer.host.name)
        if isinstance(self._dealer, PartitionScheduler):
            if head.a == Answer.FAILED:
                self._dealer.failed(head.ask, peer.host.name)
            elif head.a == Answer.MADE:
                self._dealer.took(head.ask, peer.host.name, head.e / 1e9)
        ticket = self._dealer.arrived(head.ask, peer.host.name, time.monotonic())
        if requested_s is not None and head.a == Answer.MADE:
            self._accounts.arrived(
                peer.host.name,
                head.b,
                requested_s=requested_s,
                began_s=arrived.began_s,
                queued_ns=head.d,
                making_ns=head.e,
                size_bytes=head.body_bytes,
                counted=ticket is not None,
            )
        if isinstance(self._dealer, BatchScheduler) and peer.recipe == self._loader_spec[0]:
            self._judge(peer, arrived, is_whole=ticket is not None)
        if ticket is None:
            return
        slot = self._landing.pop(ticket)
        worker = self._names.index(peer.host.name) * _WORKERS_PER_HOST + head.b
        answer = AnswerMessage(
            Answer(head.a), worker, ticket, slot, head.c, head.body_bytes - head.c
        )
        self._answers.add(answer)

    def _judge(self, peer: ServerConnection, arrived: IncomingFrame, *, is_whole: bool) -> None:
        """Ask a host that has made its first batch for more, and one that cannot for no more."""
        if arrived.head.a == Answer.MADE and peer.proven != peer.recipe:
            peer.proven = peer.recipe
            self._use(peer)
        elif is_whole and is_excluded_at_first_batch(peer, arrived, self._tell):
            self._exclude_host(peer, peer.recipe)

    def _exclude_host(self, peer: ServerConnection, number: int) -> None:
        peer.refused = number
        self._dealer.lose(peer.host.name)
        peer.divert()

    def _note_failure(self, worker: int, summary: str) -> None:
        peer = self._server_connections.get(self._names[worker // _WORKERS_PER_HOST])
        if peer is not None and is_excluded_after_failure(
            peer, self._loader_spec[0], summary, self._tell
        ):
            self._exclude_host(peer, self._loader_spec[0])

    # --- what is asked of them

    def _assign_tasks(self) -> None:
        now_s = time.monotonic()
        self._spread(now_s)
        for ask in self._dealer.assign(now_s):
            order = self._landing.batch_spec_of(ask.ticket)
            told = encode_frame(FrameKind.BATCH_SPEC, order, ask=ask.number, a=ask.partition)
            self._send(self._server_connections[ask.host], told)
        for peer in self._open_connections():
            may_ask = peer.refused != self._loader_spec[0]  # else cores would be kept from others
            wanted = self._dealer.wanted_batches(peer.host.name) if may_ask else 0
            if wanted != peer.wanted:
                peer.wanted = wanted
                self._send(peer, encode_frame(FrameKind.WANTED_BATCHES, a=wanted))
        for ticket in self._dealer.give_back():
            slot = self._landing.pop(ticket)
            self._answers.add(AnswerMessage(Answer.RETURNED, 0, ticket, slot, 0, 0))
        self._answers.announce_room(self._dealer.room)
        self._answers.send()

    def _spread(self, now_s: float) -> None:
        """Spread an iterable dataset's strands, once all hosts are there or it is time to."""
        if not isinstance(self._dealer, PartitionScheduler) or self._dealer.is_assigned:
            return
        late = [
            peer
            for peer in self._server_connections.values()
            if peer.is_coming(self._loader_spec[0])
        ]
        loading = any(peer.is_open for peer in late)
        wait_s = _LOAD_WAIT_S if loading else _CONNECT_WAIT_S if late or self._coming else 0.0
        if now_s < self._began_s + wait_s:
            return
        for peer in late:  # it has a part in another iteration, once it is there
            peer.was_missed = True
        at_home = self._dealer.assign_all()
        if at_home and not self._has_reported_no_host:
            self._has_reported_no_host = True
            self._tell(no_host_line(at_home))


def main(
    control: int, answers: int, slots: list[int], hosts_file: str, rank: int, tells: int
) -> None:
    """Serve the executor at the other end of `control`, then exit.

    Args:
        control: The control connection's descriptor.
        answers: That of the socket for answers.
        slots: Those of the slots' files.
        hosts_file: Where the auxiliary hosts are told of.
        rank: The rank that it serves.
        tells: Whether it tells of hosts that are lost.
    """
    ignore_group_signals()
    taking = socket.socket(fileno=answers)
    receiver = OffloadProxy(
        Connection(control),
        taking,
        slots,
        Path(hosts_file),
        OffloadRecorder(rank),
        tells=bool(tells),
    )
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        receiver.serve()
