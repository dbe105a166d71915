"""The connections of a proxy to the servers of all auxiliary hosts, as hosts come and go."""

from __future__ import annotations

import selectors
import socket
import time
from abc import ABC, abstractmethod
from pathlib import Path

from headrace.offload.connection import (
    ConnectionAttempts,
    IncomingFrame,
    ServerConnection,
    silence_limit_s,
)
from headrace.offload.host_status import print_status
from headrace.offload.hosts_file import HostsFile, HostsFileWatcher
from headrace.offload.partitions import PartitionScheduler
from headrace.offload.protocol import FrameHeader
from headrace.offload.scheduler import BatchScheduler
from headrace.offload.worker_records import OffloadRecorder

_LOST = "is lost; what it had is made by others"
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
            longest_s = silence_limit_s(self._scheduler.again(server.host.name)[1])
            if server.connection is None:
                server.connect(self._key, self._attempts.note)
            elif now_s - server.heard_s > longest_s:
                line = f"has been silent for {longest_s:.0f} s; others make what it had"
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

    def _joined(self, server: ServerConnection, connection: socket.socket | None) -> None:
        if self._server_connections.get(server.host.name) is not server:
            if connection is not None:
                connection.close()
            return
        server.connected(connection)
        if connection is not None:
            self._selector.register(connection, selectors.EVENT_READ, server)
            self._send_loader_spec(server)

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
            if batches:
                line += f"; of an iterable dataset they first go through {batches} batches again"
            self._print_status(f"auxiliary host {server.host.name} {line}")

    def _open_connections(self) -> list[ServerConnection]:
        return [server for server in self._server_connections.values() if server.is_open]

    def _send(self, server: ServerConnection, content: bytes) -> None:
        if server.connection is None:
            return
        try:
            server.send(content)
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
        except (OSError, ValueError):
            self._lose(server, _LOST)
