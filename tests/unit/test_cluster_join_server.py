"""How hosts join a head: who gets the token, who is refused, who gets the exit code."""

from __future__ import annotations

import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

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


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_token_is_never_sent_as_it_is(token: str | None):
    hosts = () if token else ("head", OTHER)
    with head(*hosts, sends_token=token is None) as one, closing(one.client()) as client:
        sent: list[bytes] = []
        client._connection._socket = Overheard(client._connection._socket, sent)  # type: ignore[assignment]
        assert client.request_join(None, "cpu", token) == (RAY, TOKEN)
        client.report_up()
        eventually(lambda: one.server.groups() == {"gpu": 1, "cpu": 1}, "the host")
        if token:
            assert one.server.missing({"gpu": 1, "cpu": 2}) == "group cpu has 1 of 2"
        heard = b"".join(sent)
        for form in (TOKEN, TOKEN.encode().hex(), b64encode(TOKEN.encode()).decode()):
            assert form.encode() not in heard


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
        with pytest.raises(LaunchError) as raised:
            client.request_join(name, "cpu", token)
        assert message.removesuffix("head") in str(raised.value)
        assert TOKEN not in str(raised.value)
        eventually(lambda: one.lines, "that the head's user is told")
        assert message in one.lines[0]
        assert TOKEN not in one.lines[0]


def test_a_stranger_s_nonsense_is_refused_and_harms_nobody():
    with head(sends_token=False) as one:
        for hello, proof, message in (
            ({"host": "\ud800", "group": "gpu", "protocol": 2}, "\ud800ü", "another token"),
            ({"host": "a", "group": "gpu", "protocol": 2, "nonce": [1]}, {}, "another token"),
            ({"host": "a", "group": "gpu", "protocol": 2, "public": "ü"}, "", "asks for the token"),
            ({"host": "a", "group": "gpu", "has_token": True}, "", "an older version of Headrace"),
            ({"host": "a", "group": "gpu", "protocol": "x"}, "", "an older version of Headrace"),
            ({"host": "a", "group": "gpu", "protocol": 3}, "", "a newer version of Headrace than"),
            ({"host": "a", "group": "g p u", "has_token": True}, "", "a name has letters"),
            ({}, "", "a name has letters"),
        ):
            with closing(
                JsonLineConnection(socket.create_connection(("127.0.0.1", one.port)))
            ) as connection:
                connection.send(**hello)
                if "nonce" in (answer := connection.receive(20.0)):
                    connection.send(proof=proof)
                    answer = connection.receive(20.0)
                assert message in answer["refused"]
        assert one.server.groups() == {"gpu": 1}


@pytest.mark.parametrize("public", ["", "00", "0" * 64, "ü"])
def test_who_sends_no_public_key_gets_no_token(public: str):
    with (
        head("head", OTHER) as one,
        closing(JsonLineConnection(socket.create_connection(("127.0.0.1", one.port)))) as stranger,
    ):
        stranger.send(protocol=2, host=OTHER, group="cpu", nonce="1", public=public)
        if "nonce" in (answer := stranger.receive(20.0)):  # it is to prove the token
            stranger.send(proof=answer["proof"])
            answer = stranger.receive(20.0)
        assert answer["refused"]
        assert one.server.groups() == {"gpu": 1}


class Between:
    """Who stands between a host and the head, and may change the lines that they send."""

    def __init__(self, head_port: int, change: Callable[[str, Message], Message]) -> None:
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._head_port = head_port
        self.lines: dict[str, list[bytes]] = {"host": [], "head": []}
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        host, _ = self._listener.accept()
        there = socket.create_connection(("127.0.0.1", self._head_port))
        ways = [("host", host, there), ("head", there, host)]
        relays = [threading.Thread(target=self._relay, args=way) for way in ways]
        for relay in relays:
            relay.start()
        for relay in relays:
            relay.join()
        host.close()
        there.close()

    def _relay(self, sender: str, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source.makefile("rb") as lines:
            for line in lines:
                self.lines[sender].append(line)
                changed = self._change(sender, json.loads(line))
                target.sendall(json.dumps(changed).encode() + b"\n")
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
            source.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self._listener.close()
        self._threads[0].join()


Message = dict[str, object]


def replaced(sender: str, key: str, value: object) -> Callable[[str, Message], Message]:
    def change(who: str, message: Message) -> Message:
        return {**message, key: value} if who == sender and key in message else message

    return change


def within(sender: str, key: str, value: object) -> Callable[[str, Message], Message]:
    """Change a message that carries a code."""

    def change(who: str, message: Message) -> Message:
        content = message.get("message")
        if who == sender and isinstance(content, dict) and key in content:
            return {**message, "message": {**content, key: value}}
        return message

    return change


@pytest.mark.parametrize("token", [TOKEN, None])
@pytest.mark.parametrize(
    "change",
    [
        replaced("head", "address", "10.6.6.6:6379"),
        replaced("head", "nonce", "00"),
        replaced("host", "nonce", "00"),
        replaced("host", "group", "gpu"),
        within("head", "joined", False),
        within("head", "token", "00"),
    ],
)
def test_what_is_altered_between_host_and_head_ends_the_join(
    token: str | None, change: Callable[[str, Message], Message]
):
    if token and change("head", {"message": {"token": ""}}) != {"message": {"token": ""}}:
        return  # it is not sent
    with (
        head("head", OTHER, sends_token=token is None) as one,
        closing(Between(one.port, change)) as between,
        closing(client_of(between.port)) as client,
        pytest.raises(LaunchError) as raised,
    ):
        client.request_join(OTHER, "cpu", token)
    assert "10.6.6.6" not in str(raised.value)


def test_an_exit_code_that_is_altered_on_its_way_is_none():
    change = within("head", "ended", 0)
    with (
        head(sends_token=False) as one,
        closing(Between(one.port, change)) as between,
        closing(client_of(between.port)) as client,
    ):
        client.request_join("a", "cpu", TOKEN)
        client.report_up()
        eventually(lambda: one.server.groups() == {"gpu": 1, "cpu": 1}, "that it is up")
        threading.Thread(target=one.server.end, args=[3, 0.0]).start()
        with pytest.raises(LaunchError, match="altered on its way"):
            eventually(client.poll, "the end", timeout_s=20)
        assert client.exit_code is None


def test_what_a_host_has_sent_lets_nobody_else_in():
    with (
        head(sends_token=False) as one,
        closing(Between(one.port, lambda _, message: message)) as between,
    ):
        with closing(client_of(between.port)) as client:
            client.request_join("a", "cpu", TOKEN)
        with socket.create_connection(("127.0.0.1", one.port), timeout=20) as stranger:
            stranger.sendall(b"".join(between.lines["host"]))
            with stranger.makefile() as lines:
                *_, last = map(json.loads, lines)
        assert "has another token" in last["refused"]
        assert one.server.groups() == {"gpu": 1}


def test_a_head_s_own_proof_proves_no_host():
    with (
        head(sends_token=False) as one,
        closing(JsonLineConnection(socket.create_connection(("127.0.0.1", one.port)))) as stranger,
    ):
        stranger.send(protocol=2, host="a", group="cpu", nonce="1", public="")
        stranger.send(proof=stranger.receive(20.0)["proof"])
        assert "has another token" in stranger.receive(20.0)["refused"]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ({"challenge": "00"}, "head 127.0.0.1 runs an older version .* on 127.0.0.1 first"),
        ({"protocol": 3}, "head 127.0.0.1 runs a newer version .* on this host first"),
        ({"address": RAY, "token": TOKEN}, "is no head of a job"),
        ({"protocol": 2, "address": RAY, "nonce": "0", "proof": "00"}, "another token|no head"),
        ({"protocol": 2, "address": RAY, "proof": {}}, "another token|no head"),
        ({"protocol": 2, "public": "0" * 64}, "another token|no head"),
    ],
)
@pytest.mark.parametrize("token", [TOKEN, None])
def test_another_program_or_version_is_no_head_and_gets_no_proof(
    reply: Message, message: str, token: str | None
):
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        closing(client_of(listening.getsockname()[1])) as client,
        closing(JsonLineConnection(listening.accept()[0])) as theirs,
    ):
        theirs.send(**reply)
        with pytest.raises(LaunchError, match=message):
            client.request_join(OTHER, "cpu", token)
        assert theirs.receive(20.0)["protocol"] == 2
        client.close()
        with suppress(ConnectionError):
            assert theirs.receive(20.0) == {"proof": ""}
            theirs.receive(20.0)


def test_strangers_who_say_nothing_keep_no_host_out():
    with head("head", OTHER) as one, ExitStack() as strangers:
        for _ in range(200):
            strangers.enter_context(socket.create_connection(("127.0.0.1", one.port)))
        with closing(one.client()) as client:
            assert client.request_join(OTHER, "cpu", None) == (RAY, TOKEN)


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
    nested = b"[" * (8 << 10) + b"\n"  # deeper than Python's parser goes
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", nested, b"x" * (40 << 10)):
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
