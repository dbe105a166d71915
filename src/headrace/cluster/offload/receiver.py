"""The process beside a rank that asks auxiliary hosts for batches and puts them into slots.

It is told what to do through a control connection, by tuples: ("recipe", number, bytes, strands of
an iterable dataset), ("again",) for the same one, ("ticket", number, slot, payload bytes, strand),
("take home", strand), ("forget",), ("failed", worker, summary). It reports ("forgotten",), and
answers tickets on the socket where workers do. It ends with the connection.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path

from headrace.cluster.offload.accounts import Accounts
from headrace.cluster.offload.answering import Answers
from headrace.cluster.offload.dealing import Dealer
from headrace.cluster.offload.failing import fails_again, fails_at_first
from headrace.cluster.offload.hosts_file import HostsFile, HostsWatch
from headrace.cluster.offload.landing import Landing
from headrace.cluster.offload.link import Head, Kind, frame
from headrace.cluster.offload.peer import Arriving, Attempts, Peer, longest_silence_s
from headrace.cluster.offload.strands import StrandDealer
from headrace.cluster.offload.telling import (
    Teller,
    and_again,
    back_from,
    late_there,
    lost_for,
    nobody_there,
    refused_there,
    silent_for,
)
from headrace.core.lifetime import leave_signals_to_the_parent
from headrace.data.loader.channels import Answer, AnswerMessage
from headrace.data.loader.failures import Failure

_LOOK_S, _SOON_S = 0.1, 0.005
# An iterable dataset is begun without hosts that are not there, or have not loaded it, by then.
_WAIT_TO_MEET_S, _WAIT_TO_LOAD_S = 20.0, 60.0
_STALLED_S = 1.0  # this process itself was stopped meanwhile: nobody else is to blame
_WORKERS = 1 << 20  # a host's workers are counted from a multiple of it


class Receiver:
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
        accounts: Accounts, *, tells: bool,
    ) -> None:  # fmt: skip
        self._control = control
        self._answers = Answers(answers)
        self._landing = Landing(slots)
        self._hosts = HostsWatch(hosts_file)
        self._accounts = accounts
        self._key = b""
        self._dealer: Dealer | StrandDealer = Dealer()
        self._coming = 0  # hosts that are not there yet
        self._began_s = 0.0  # the iteration over an iterable dataset
        self._told_nobody = False
        self._peers: dict[str, Peer] = {}
        self._names: list[str] = []  # in the order they were first seen
        self._attempts = Attempts()
        self._recipe = (0, b"")
        self._tell = Teller(on=tells)
        self._looked_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, None)
        self._selector.register(self._attempts, selectors.EVENT_READ, None)

    def serve(self) -> None:
        """Serve until the training process is gone (EOFError)."""
        while True:
            ready = self._selector.select(_SOON_S if self._answers.has_unsent else _LOOK_S)
            self._forgive_where_stalled()
            for key, events in ready:
                if isinstance(key.data, Peer):
                    self._attend(key.data, events)
            self._look_after_hosts()
            while self._control.poll(0):
                self._heed(self._control.recv())
            self._deal()

    def _forgive_where_stalled(self) -> None:
        before_s, self._looked_s = self._looked_s, time.monotonic()
        if self._looked_s - before_s > _LOOK_S + _STALLED_S:
            for peer in self._peers.values():
                peer.heard_s = self._looked_s

    # --- what the training process says

    def _heed(self, request: tuple[object, ...]) -> None:
        match request:
            case ("recipe", int(number), bytes(content), list(strands)):
                self._recipe = number, content
                self._accounts.begun()
                self._begin(strands)
                for peer in self._peers.values():
                    peer.failures = 0
                    self._send_recipe(peer)
                self._answers.tell_room_anew()
            case ("again",):
                self._answers.tell_room_anew()
            case ("ticket", int(number), int(slot), int(payload_bytes), int(strand)):
                self._landing.add(number, slot, payload_bytes)
                self._dealer.add(number, strand)
            case ("take home", int(strand)):
                self._take_home(strand)
            case ("failed", int(worker), str(summary)):
                self._note_failure(worker, summary)
            case _:
                self._forget()

    def _begin(self, strands: list[int]) -> None:
        """Begin an iteration over an iterable dataset, of which hosts have strands."""
        if strands:
            if not isinstance(self._dealer, StrandDealer):
                self._dealer = StrandDealer()
            self._dealer.begin(strands)
            self._began_s = time.monotonic()

    def _take_home(self, strand: int) -> None:
        if isinstance(self._dealer, StrandDealer):
            host = self._dealer.take_home(strand)
            for peer in self._open_peers():
                # What is arriving may be of no use any more, and its place be another's.
                if not self._dealer.needs(peer.arriving_ask, peer.host.name):
                    peer.divert()
            if host is not None:
                self._tell(late_there(host))

    def _forget(self) -> None:
        self._dealer.forget()
        self._landing.clear()
        self._answers.clear()
        for peer in self._open_peers():
            peer.divert()
            self._send(peer, frame(Kind.FORGET))
        self._control.send(("forgotten",))

    def _send_recipe(self, peer: Peer) -> None:
        number, content = self._recipe
        if not peer.is_open or not number or number in {peer.recipe, peer.refused}:
            return
        self._dealer.lose(peer.host.name)
        peer.recipe = 0
        if isinstance(self._dealer, StrandDealer):
            peer.bear_silence()
        self._tell_to_record(peer)
        self._send(peer, frame(Kind.RECIPE, content, a=number))

    def _tell_to_record(self, peer: Peer) -> None:
        if self._accounts.loader is not None and peer.records != self._accounts.on:
            peer.records = self._accounts.on
            self._send(peer, frame(Kind.RECORD, a=int(self._accounts.on)))

    # --- hosts come and go

    def _look_after_hosts(self) -> None:
        now_s = time.monotonic()
        self._accounts.catch_up()
        if (news := self._hosts.news(now_s)) is not None:
            self._hear(news)
        for ended in self._attempts.ended():
            self._joined(*ended)
        for peer in list(self._peers.values()):
            longest_s = longest_silence_s(self._dealer.again(peer.host.name)[1])
            if peer.connection is None:
                peer.connect(self._key, self._attempts.note)
            elif now_s - peer.heard_s > longest_s:
                self._lose(peer, silent_for(peer.host.name, longest_s))
            else:
                self._tell_to_record(peer)

    def _hear(self, news: HostsFile) -> None:
        self._key = bytes.fromhex(news.key)
        self._coming = news.coming
        hosts = {host.name: host for host in news.hosts}
        for name, peer in list(self._peers.items()):
            if hosts.get(name) != peer.host:
                self._lose(peer, "" if peer.connection is None else lost_for(name))
                del self._peers[name]
        for name, host in hosts.items():
            self._peers.setdefault(name, Peer(host))
        self._names += [name for name in hosts if name not in self._names]

    def _joined(self, peer: Peer, connection: socket.socket | None) -> None:
        if self._peers.get(peer.host.name) is not peer:
            if connection is not None:
                connection.close()
            return
        peer.connected(connection)
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._send_recipe(peer)

    def _lose(self, peer: Peer, told: str = "") -> None:
        batches, _ = self._dealer.again(peer.host.name)
        if peer.connection is not None:
            self._selector.unregister(peer.connection)
            peer.lost()
            self._accounts.cores_of(peer.host.name, 0)
        self._dealer.lose(peer.host.name)
        if told and not peer.was_lost:
            peer.was_lost = True
            self._tell(told + and_again(batches))

    def _open_peers(self) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer.is_open]

    def _send(self, peer: Peer, content: bytes) -> None:
        if peer.connection is None:
            return
        try:
            peer.send(content)
        except OSError:
            self._lose(peer, lost_for(peer.host.name))
        self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        if peer.connection is not None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_unsent else 0)
            self._selector.modify(peer.connection, events, peer)

    # --- what hosts say

    def _attend(self, peer: Peer, events: int) -> None:
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
            self._lose(peer, lost_for(peer.host.name))

    def _place(self, peer: Peer, head: Head) -> memoryview:
        """Return where a frame's body goes: into the slot of its ticket, if that is needed."""
        if head.kind is Kind.BATCH and head.a != Answer.RETURNED:
            return self._landing.memory(
                self._dealer.begins(head.ask, peer.host.name), head.body_bytes
            )
        return memoryview(bytearray(head.body_bytes))

    def _take_in(self, peer: Peer, arrived: Arriving) -> None:
        head = arrived.head
        match head.kind:
            case Kind.BATCH if head.a == Answer.RETURNED:
                self._dealer.returned(head.ask, peer.host.name)
            case Kind.BATCH:
                self._take_batch(peer, arrived)
            case Kind.SHARE:
                peer.orders, peer.cores = head.a, head.b
                self._use(peer)
            case Kind.READY:
                peer.recipe = head.a
                peer.was_missed = False
                self._use(peer)
            case Kind.REFUSED:
                self._ask_no_more(peer, head.a)
                if head.a == self._recipe[0]:
                    failure = Failure.from_bytes(bytes(arrived.body))
                    self._tell(refused_there(peer.host.name, failure))
            case Kind.BEAT:
                pass
            case Kind.ROWS:
                self._accounts.add(peer.host.name, bytes(arrived.body))
            case _:
                raise ValueError(f"a station does not say {head.kind.name}")

    def _use(self, peer: Peer) -> None:
        if peer.recipe == self._recipe[0] and peer.recipe != peer.refused and peer.orders:
            orders = peer.orders_now(is_tried=isinstance(self._dealer, Dealer))
            self._dealer.set_orders(peer.host.name, orders)
            self._accounts.cores_of(peer.host.name, peer.cores)
            if peer.was_lost:
                peer.was_lost = False
                self._tell(back_from(peer.host.name))

    def _take_batch(self, peer: Peer, arrived: Arriving) -> None:
        head = arrived.head
        self._send(peer, frame(Kind.RECEIVED, ask=head.ask))
        asked_s = self._dealer.asked_s(head.ask, peer.host.name)
        if isinstance(self._dealer, StrandDealer):
            if head.a == Answer.FAILED:
                self._dealer.failed(head.ask, peer.host.name)
            elif head.a == Answer.MADE:
                self._dealer.took(head.ask, peer.host.name, head.e / 1e9)
        ticket = self._dealer.arrived(head.ask, peer.host.name, time.monotonic())
        if asked_s is not None and head.a == Answer.MADE:
            self._accounts.arrived(
                peer.host.name, head.b, asked_s=asked_s, began_s=arrived.began_s, queued_ns=head.d,
                making_ns=head.e, size_bytes=head.body_bytes, counted=ticket is not None,
            )  # fmt: skip
        if isinstance(self._dealer, Dealer) and peer.recipe == self._recipe[0]:
            self._judge(peer, arrived, is_whole=ticket is not None)
        if ticket is None:
            return
        slot = self._landing.pop(ticket)
        worker = self._names.index(peer.host.name) * _WORKERS + head.b
        answer = AnswerMessage(
            Answer(head.a), worker, ticket, slot, head.c, head.body_bytes - head.c
        )
        self._answers.add(answer)

    def _judge(self, peer: Peer, arrived: Arriving, *, is_whole: bool) -> None:
        """Ask a host that has made its first batch for more, and one that cannot for no more."""
        if arrived.head.a == Answer.MADE and peer.proven != peer.recipe:
            peer.proven = peer.recipe
            self._use(peer)
        elif is_whole and fails_at_first(peer, arrived, self._tell):
            self._ask_no_more(peer, peer.recipe)

    def _ask_no_more(self, peer: Peer, number: int) -> None:
        peer.refused = number
        self._dealer.lose(peer.host.name)
        peer.divert()

    def _note_failure(self, worker: int, summary: str) -> None:
        peer = self._peers.get(self._names[worker // _WORKERS])
        if peer is not None and fails_again(peer, self._recipe[0], summary, self._tell):
            self._ask_no_more(peer, self._recipe[0])

    # --- what is asked of them

    def _deal(self) -> None:
        now_s = time.monotonic()
        self._spread(now_s)
        for ask in self._dealer.deal(now_s):
            order = self._landing.order_of(ask.ticket)
            told = frame(Kind.ORDER, order, ask=ask.number, a=ask.strand)
            self._send(self._peers[ask.host], told)
        for peer in self._open_peers():
            may_ask = peer.refused != self._recipe[0]  # else cores would be kept from others
            wanted = self._dealer.wanted_of(peer.host.name) if may_ask else 0
            if wanted != peer.wanted:
                peer.wanted = wanted
                self._send(peer, frame(Kind.WANT, a=wanted))
        for ticket in self._dealer.give_back():
            slot = self._landing.pop(ticket)
            self._answers.add(AnswerMessage(Answer.RETURNED, 0, ticket, slot, 0, 0))
        self._answers.tell_room(self._dealer.room)
        self._answers.send()

    def _spread(self, now_s: float) -> None:
        """Spread an iterable dataset's strands, once all hosts are there or it is time to."""
        if not isinstance(self._dealer, StrandDealer) or self._dealer.is_spread:
            return
        late = [peer for peer in self._peers.values() if peer.is_coming(self._recipe[0])]
        loading = any(peer.is_open for peer in late)
        wait_s = _WAIT_TO_LOAD_S if loading else _WAIT_TO_MEET_S if late or self._coming else 0.0
        if now_s < self._began_s + wait_s:
            return
        for peer in late:  # it has a part in another iteration, once it is there
            peer.was_missed = True
        at_home = self._dealer.spread_out()
        if at_home and not self._told_nobody:
            self._told_nobody = True
            self._tell(nobody_there(at_home))


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
    leave_signals_to_the_parent()
    taking = socket.socket(fileno=answers)
    receiver = Receiver(
        Connection(control), taking, slots, Path(hosts_file), Accounts(rank), tells=bool(tells)
    )
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        receiver.serve()
