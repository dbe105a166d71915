"""How hosts join a head: who gets the token, who is refused, who gets the exit code."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from headrace.cluster.host_identity import find_this_host, head_address, source_address
from headrace.cluster.join_connections import JoinClient, JoinServer, JsonLineConnection
from headrace.core.errors import LaunchError, UsageError
from jobs import eventually

TOKEN = "0123456789abcdef"
RAY = "10.0.0.1:6379"
OTHER = "127.0.0.1"  # a host's name that is its address


class Head:
    """A join server, its port, and the status lines that it has printed."""

    def __init__(self, hosts: tuple[str, ...], *, sends_token: bool) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.lines: list[str] = []
        self.server = JoinServer(
            address="127.0.0.1", port=self.port, head="head", group="gpu", hosts=hosts,
            token=TOKEN, sends_token=sends_token, print_line=self.lines.append,
        )  # fmt: skip
        self.server.start(RAY)

    def client(self) -> JoinClient:
        return client_of(self.port)


def client_of(port: int, longest_s: float = 20.0) -> JoinClient:
    return JoinClient("127.0.0.1", port, longest_s=longest_s, pause=time.sleep)


@contextmanager
def head(*hosts: str, sends_token: bool = True) -> Iterator[Head]:
    found = Head(hosts, sends_token=sends_token)
    yield found
    found.server.end(0, 0.0)


def test_a_host_of_the_list_gets_the_token_is_awaited_and_hears_of_the_end():
    with head("head", OTHER, "third") as one, closing(one.client()) as client:
        assert one.server.missing({}) == f"{OTHER}, third"
        assert client.request_join(OTHER, "cpu", None) == (RAY, TOKEN)
        assert one.server.missing({}) == f"{OTHER} (Ray is starting there), third"
        assert one.server.groups() == {"gpu": 1}
        client.report_up()
        eventually(lambda: one.server.missing({}) == "third", "that the host is up")
        assert one.server.groups() == {"gpu": 1, "cpu": 1}
        client.poll()
        assert client.exit_code is None
        ending = threading.Thread(target=one.server.end, args=[3, 20.0])
        ending.start()
        eventually(lambda: client.poll() or client.exit_code is not None, "the end")
        assert client.exit_code == 3
        assert ending.is_alive()  # until the host has left
        client.close()
        ending.join()
        assert one.lines == []


def test_a_token_that_all_were_given_is_proved_and_never_sent():
    with head(sends_token=False) as one, closing(one.client()) as client:
        sent: list[bytes] = []
        client._connection._socket = Overheard(client._connection._socket, sent)  # type: ignore[assignment]
        assert client.request_join(None, "cpu", TOKEN) == (RAY, TOKEN)
        client.report_up()
        eventually(lambda: one.server.groups() == {"gpu": 1, "cpu": 1}, "the host")
        assert one.server.missing({"gpu": 1, "cpu": 2}) == "group cpu has 1 of 2"
        assert TOKEN.encode() not in b"".join(sent)


class Overheard:
    """A socket, and what goes through it."""

    def __init__(self, connection: socket.socket, sent: list[bytes]) -> None:
        self._connection = connection
        self._sent = sent

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)

    def sendall(self, data: bytes) -> None:
        self._sent.append(data)
        self._connection.sendall(data)

    def recv(self, size: int) -> bytes:
        self._sent.append(data := self._connection.recv(size))
        return data


@pytest.mark.parametrize(
    ("name", "token", "sends_token", "message"),
    [
        ("stranger", None, True, "says it is 'stranger', which is no other host of the job"),
        ("head", None, True, "says it is 'head', which is no other host"),
        ("192.0.2.1", None, True, "asks for the token as 192.0.2.1, whose addresses are 192.0.2.1"),
        (OTHER, "another", True, "has another token than head"),
        (OTHER, "another", False, "has another token than head"),
        (OTHER, None, False, "hands out only where it made it itself"),
    ],
)
def test_who_may_not_take_part_gets_no_token_and_gets_the_reason(
    name: str, token: str | None, sends_token: bool, message: str
):
    with head("head", OTHER, "192.0.2.1", sends_token=sends_token) as one, \
         closing(one.client()) as client:  # fmt: skip
        with pytest.raises(LaunchError, match="refuses this host") as raised:
            client.request_join(name, "cpu", token)
        assert message in str(raised.value)
        assert TOKEN not in str(raised.value)
        assert message in one.lines[0]
        assert TOKEN not in one.lines[0]


def test_a_stranger_s_nonsense_is_refused_and_harms_nobody():
    with head(sends_token=False) as one:
        for hello, proof, message in (
            ({"host": "\ud800", "group": "gpu", "has_token": True}, "\ud800ü", "another token"),
            ({"host": "a", "group": "g p u", "has_token": True}, "", "a name has letters"),
            ({}, "", "a name has letters"),
        ):
            with closing(
                JsonLineConnection(socket.create_connection(("127.0.0.1", one.port)))
            ) as connection:
                connection.send(**hello)
                if "challenge" in (answer := connection.receive(20.0)):
                    connection.send(proof=proof)
                    answer = connection.receive(20.0)
                assert message in answer["refused"]
        assert one.server.groups() == {"gpu": 1}


def test_once_all_are_there_the_token_is_kept_and_a_host_that_has_it_may_come_back():
    with head("head", OTHER) as one:
        with closing(one.client()) as client:
            client.request_join(OTHER, "cpu", None)
            one.server.withhold_token()
        eventually(lambda: one.lines == [f"{OTHER} (cpu) has left"], "that it left")
        with (
            closing(one.client()) as client,
            pytest.raises(LaunchError, match="not all hosts have"),
        ):
            client.request_join(OTHER, "cpu", None)
        with closing(one.client()) as client:
            assert client.request_join(OTHER, "cpu", TOKEN) == (RAY, TOKEN)


def test_of_two_launchers_on_one_host_the_older_one_is_refused():
    with head("head", OTHER) as one, closing(one.client()) as older, closing(one.client()) as newer:
        older.request_join(OTHER, "cpu", None)
        newer.request_join(OTHER, "cpu", None)
        with pytest.raises(LaunchError, match="has come once more since"):
            eventually(older.poll, "that it is sent away", timeout_s=20)
        newer.poll()


def test_a_head_that_ends_without_a_word_is_lost():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = client_of(listening.getsockname()[1])
        listening.accept()[0].close()
        with closing(client), pytest.raises(LaunchError, match="is lost: it has ended the connect"):
            eventually(client.poll, "that it is lost", timeout_s=20)


def test_a_head_that_does_not_answer_is_reported_with_the_reason():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=r"does not answer at 127\.0\.0\.1:\d+ after 0 s: "):
            client_of(port, 0.3)
        taken.listen()
        with closing(client_of(port, 0.3)) as client, \
             pytest.raises(LaunchError, match="it does not answer yet"):  # fmt: skip
            client.request_join("a", "cpu", None)


def test_a_port_that_is_taken_is_reported():
    with head("head") as one, pytest.raises(LaunchError, match="Choose another --port"):
        JoinServer(
            address="127.0.0.1", port=one.port, head="head", group="gpu", hosts=(), token=TOKEN,
            sends_token=False, print_line=one.lines.append,
        )  # fmt: skip


def test_what_is_no_line_of_json_ends_a_conversation():
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"x" * (40 << 10)):
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()) as theirs,
            closing(JsonLineConnection(listening.accept()[0])) as connection,
        ):
            theirs.sendall(text)
            with pytest.raises(ConnectionError):
                connection.receive(5.0)


def test_which_of_some_hosts_this_one_is():
    assert find_this_host(["192.0.2.1", "127.0.0.1"]) == "127.0.0.1"
    assert find_this_host(["192.0.2.1", "no.such.host.invalid"]) is None
    with pytest.raises(UsageError, match=r"localhost and 127\.0\.0\.1 lead to this host alike"):
        find_this_host(["localhost", "127.0.0.1"])
    assert source_address("127.0.0.9") == "127.0.0.1"


def test_a_head_that_only_itself_reaches_is_reported():
    assert head_address("127.0.0.1", ["127.0.0.1"]) == "127.0.0.1"  # there is no other host
    with pytest.raises(UsageError, match="where no other host reaches it"):
        head_address("127.0.0.1", [])
