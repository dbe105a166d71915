"""Who may talk to an offload server: strangers are refused, do no harm, and hold up nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from headrace.offload.connection import HostsFile
from headrace.offload.frames import SessionKeys
from headrace.offload.protocol import (
    AuthenticationError,
    VersionError,
    authenticate_client,
    authenticate_to_server,
)
from headrace.offload.unauthenticated import UnauthenticatedConnections
from offload_servers import OffloadServers

PATIENCE_S = 20.0
OLD_HELLO = b"headrace batches 2" + bytes(32)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OffloadServers]:
    found = OffloadServers(tmp_path_factory.mktemp("job"))
    found.start("one", 1)
    yield found
    found.close()


def connected(servers: OffloadServers) -> socket.socket:
    (host,) = HostsFile.read(servers.write_hosts_file()).hosts
    return socket.create_connection((host.address, host.port), timeout=PATIENCE_S)


def key_of(servers: OffloadServers) -> bytes:
    return bytes.fromhex(HostsFile.read(servers.write_hosts_file()).key)


def test_strangers_who_say_nothing_keep_nobody_out(servers: OffloadServers) -> None:
    with ExitStack() as strangers:
        for number in range(300):
            stranger = strangers.enter_context(connected(servers))
            if number % 2:
                stranger.sendall(b"headrace batches 3"[: number % 19])
        with connected(servers) as rank:
            # Less than the deadline of those who say nothing.
            assert authenticate_to_server(rank, key_of(servers), 5.0)


def test_what_one_rank_has_sent_opens_no_other_session(servers: OffloadServers) -> None:
    key = key_of(servers)
    with connected(servers) as rank:
        recorded = Recorded(rank)
        authenticate_to_server(recorded, key, PATIENCE_S)
    with connected(servers) as stranger:
        stranger.sendall(recorded.sent)
        reply = b""
        while piece := stranger.recv(4096):
            reply += piece
        assert len(reply) == 64  # its nonce and proof, then it hangs up
        assert reply != recorded.received


class Recorded:
    """A socket, and what went through it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.sent = self.received = b""

    def settimeout(self, seconds: float) -> None:
        self._connection.settimeout(seconds)

    def sendall(self, content: bytes) -> None:
        self.sent += content
        self._connection.sendall(content)

    def recv(self, size: int) -> bytes:
        self.received += (piece := self._connection.recv(size))
        return piece


def test_a_rank_of_an_older_version_is_refused_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    servers = OffloadServers(tmp_path)
    try:
        servers.start("one", 1)
        with connected(servers) as rank:
            rank.sendall(OLD_HELLO)
            reply = b""
            while piece := rank.recv(4096):
                reply += piece
            assert reply.rstrip(b"\0") == b"headrace batches 3"
    finally:
        servers.close()
    assert capfd.readouterr().err == (
        "headrace: a rank could not be let in: The other side has version 2 of offload's protocol, "
        "this one 3. Install the same version of Headrace on every host.\n"
    )


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (b"", AuthenticationError, "or an older version of Headrace. Install the same version"),
        (b"headrace batches 4".ljust(64, b"\0"), VersionError, "has version 4 .* this one 3"),
        (bytes(64), AuthenticationError, "does not know this job's key"),
    ],
)
def test_a_rank_says_why_a_server_is_not_used(
    reply: bytes, error: type[AuthenticationError], message: str
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(reply)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(error, match=message):
            authenticate_to_server(ours, b"key", PATIENCE_S)


def test_each_connection_and_direction_has_keys_of_its_own() -> None:
    found: list[SessionKeys] = []
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs, ThreadPoolExecutor(1) as pool:
            of_server = pool.submit(authenticate_client, theirs, b"key", PATIENCE_S)
            found.append(authenticate_to_server(ours, b"key", PATIENCE_S))
            assert of_server.result() == found[-1]
    assert len({key for keys in found for key in (keys.to_server, keys.to_proxy)}) == 4
    assert found[0].to_server.hex() not in repr(found)


def test_of_many_unauthenticated_the_oldest_of_the_busiest_address_ends() -> None:
    strangers = UnauthenticatedConnections(3)
    pairs = [socket.socketpair() for _ in range(6)]
    addresses = ["a", "b", "b", "b", "a", "c"]
    ended = []
    for _, theirs in pairs:
        theirs.setblocking(False)
    for (ours, _), address in zip(pairs, addresses, strict=True):
        strangers.add(ours, address)
        for number, (_, other) in enumerate(pairs):
            with suppress(BlockingIOError):
                if number not in ended and other.recv(1) == b"":
                    ended.append(number)
        if address == "c":
            strangers.remove(ours)
    assert ended == [1, 0, 2]
    for pair in pairs:
        for each in pair:
            each.close()
