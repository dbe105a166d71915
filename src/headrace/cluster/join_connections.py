"""The connections by which hosts join a job: the server of its head, and a host's client.

They are of JSON lines. A host connects, sends its name and group, and stays connected as long as it
is part of the job, whose exit code it learns at the end. If every host was given Ray's token, head
and host prove to each other that they have it (`join_handshake.py`). If the head made it, it sends
it encrypted, only to addresses of hosts that were named beforehand and only until all have joined.
Later messages have codes, by keys of the connection.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.cluster.host_identity import addresses_of
from headrace.cluster.join_handshake import (
    JOIN_PROTOCOL,
    AgreedSecret,
    JoinHandshake,
    MessageCodes,
    new_nonce,
)
from headrace.core.console import print_status
from headrace.core.errors import LaunchError, UsageError
from headrace.offload.unauthenticated import UnauthenticatedConnections
from headrace.platforms.instance_groups import check_group_name

_MAX_LINE_BYTES = 16 << 10
_SEND_S = 10.0
# A host that vanished with its machine is noticed after idle + count x interval seconds.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


class JsonLineConnection:
    """A connection of JSON lines; one thread receives, any thread may send; `close` closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # some systems lack them
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._buffer = b""
        self._send_lock = threading.Lock()
        self._sent_codes: MessageCodes | None = None  # None: not authenticated yet
        self._received_codes: MessageCodes | None = None

    @property
    def own_address(self) -> str:
        """This end's address."""
        return str(self._socket.getsockname()[0])

    def secure(self, sent: MessageCodes, received: MessageCodes) -> None:
        """Have all later messages, in both directions, carry codes."""
        self._sent_codes, self._received_codes = sent, received

    def send(self, **message: object) -> None:
        """Send a message; raises OSError where the other end is gone."""
        with self._send_lock:
            if self._sent_codes is not None:
                message = {"message": message, "code": self._sent_codes.next_code(message)}
            line = json.dumps(message).encode() + b"\n"
            self._socket.settimeout(_SEND_S)
            self._socket.sendall(line)

    def receive(self, longest_s: float) -> dict[str, Any]:
        """Wait for a message, and return it; raises TimeoutError.

        ConnectionError: the other end has closed, or sent something else than our messages.
        """
        deadline_s = time.monotonic() + longest_s
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MAX_LINE_BYTES:
                raise ConnectionError("what is said there has no end")
            self._buffer += self._more(max(0.0, deadline_s - time.monotonic()))
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):  # the second for thousands of brackets
            message = None
        if not isinstance(message, dict):
            raise ConnectionError("something else than headrace speaks there")
        return message if self._received_codes is None else self._checked(message)

    def _checked(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._received_codes is not None
        content, code = message.get("message"), str(message.get("code", ""))
        if not isinstance(content, dict) or not hmac.compare_digest(
            code.encode("utf-8", "replace"), self._received_codes.next_code(content).encode()
        ):
            raise ConnectionError("what is said there was altered on its way")
        return content

    def close(self) -> None:
        """Close the connection; a pending `receive` fails."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _more(self, longest_s: float) -> bytes:
        self._socket.settimeout(longest_s)
        try:
            piece = self._socket.recv(4096)
        except BlockingIOError:
            raise TimeoutError from None
        if not piece:
            raise ConnectionError("it has ended the connection")
        return piece


_HELLO_S = 10.0
_RECEIVE_S = 3600.0
_POLL_S = 0.05
_BACKLOG = 128  # connections not accepted yet


@dataclass(slots=True, eq=False)
class _JoinedHost:
    group: str
    connection: JsonLineConnection
    is_up: bool = False


class _RefusedError(Exception):
    """A host is not admitted; the text says why, to that host and to the head's user."""


@dataclass(kw_only=True)
class JoinServer:
    """The service at which hosts join, and the hosts that have joined.

    The constructor listens, and raises LaunchError where the port is taken.
    """

    address: str  # the head's, by which others reach it
    port: int
    head: str  # the head's name
    group: str  # the head's group
    hosts: Sequence[str]  # names of all; empty if they are not known beforehand
    token: str = field(repr=False)  # Ray's
    sends_token: bool  # the head made the token, so the others do not have it
    print_line: Callable[[str], None] = print_status  # about hosts that leave or are refused

    def __post_init__(self) -> None:
        self._joined_hosts: dict[str, _JoinedHost] = {}
        self._lock = threading.Lock()
        self._ray_address = ""
        self._exit_code: int | None = None
        self._strangers = UnauthenticatedConnections()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listener.bind((self.address, self.port))
        except OSError as error:
            self._listener.close()
            raise LaunchError(
                f"{self.head} cannot listen on {self.address}:{self.port}, where other hosts find "
                f"it: {error.strerror}. Choose another --port, one less than a free one, on every "
                "host."
            ) from error
        self._listener.listen(_BACKLOG)  # hosts that connect before `start` wait for an answer

    def start(self, ray_address: str) -> None:
        """Start to admit hosts to the head's Ray node at HOST:PORT, which is up."""
        self._ray_address = ray_address
        threading.Thread(target=self._listen, name="join-server", daemon=True).start()

    def groups(self) -> dict[str, int]:
        """Return how many hosts of each group are up, the head's group first."""
        with self._lock:
            up = [joined.group for joined in self._joined_hosts.values() if joined.is_up]
        return dict(Counter([self.group, *up]))

    def missing(self, groups: Mapping[str, int]) -> str:
        """Return a description of the hosts that are not up yet; "" if all are.

        `groups` says how many hosts each group needs, for hosts that are not known by name.
        """
        if not self.hosts:
            up = self.groups()
            return ", ".join(
                f"group {group} has {up.get(group, 0)} of {hosts}"
                for group, hosts in groups.items()
                if up.get(group, 0) < hosts
            )
        with self._lock:
            joined = dict(self._joined_hosts)
        return ", ".join(
            f"{host} (Ray is starting there)" if host in joined else host
            for host in self.hosts
            if host != self.head and not (host in joined and joined[host].is_up)
        )

    def withhold_token(self) -> None:
        """Stop sending the token to hosts."""
        with self._lock:
            self.sends_token = False

    def end(self, exit_code: int, longest_s: float) -> None:
        """Send the hosts the job's exit code, and wait `longest_s` at most until they have left."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in `accept`
        self._listener.close()
        with self._lock:
            self._exit_code = exit_code
            joined_hosts = list(self._joined_hosts.values())
        for joined in joined_hosts:
            with suppress(OSError):
                joined.connection.send(ended=exit_code)
        deadline_s = time.monotonic() + longest_s
        while self._joined_hosts and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        for joined in joined_hosts:
            joined.connection.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                if self._exit_code is not None or self._listener.fileno() < 0:
                    return
                time.sleep(_POLL_S)  # such as too many open files
                continue
            self._strangers.add(connection, str(peer[0]))
            try:
                threading.Thread(
                    target=self._serve_host, args=[connection, str(peer[0])], daemon=True
                ).start()
            except RuntimeError:  # no thread is left
                self._strangers.remove(connection)
                connection.close()

    def _serve_host(self, stranger: socket.socket, peer: str) -> None:
        name, joined, connection = "", None, JsonLineConnection(stranger)
        try:
            hello = connection.receive(_HELLO_S)
            name, group = str(hello.get("host", "")), str(hello.get("group", ""))
            check_group_name(group, f"{peer} says it is in the group {group!r}")
            self._check_protocol(peer, name, hello.get("protocol", 1))
            handshake = self._admit(connection, peer, hello)
            self._strangers.remove(stranger)
            connection.secure(handshake.message_codes("head"), handshake.message_codes("host"))
            joined = _JoinedHost(group, connection)
            self._register(name, joined, handshake)
            while True:
                with suppress(TimeoutError):
                    message = connection.receive(_RECEIVE_S)
                    joined.is_up = joined.is_up or bool(message.get("up"))
        except (_RefusedError, UsageError) as refusal:
            self.print_line(str(refusal))
            with suppress(OSError):
                connection.send(refused=str(refusal))
        except OSError:
            pass  # it has left, or never sent its name
        finally:
            self._strangers.remove(stranger)
            connection.close()
            if joined is not None:
                self._unregister(name, joined)

    def _check_protocol(self, peer: str, name: str, protocol: object) -> None:
        if protocol == JOIN_PROTOCOL:
            return
        is_newer = isinstance(protocol, int) and protocol > JOIN_PROTOCOL
        raise _RefusedError(
            f"{name!r} at {peer} runs {'a newer' if is_newer else 'an older'} version of Headrace "
            f"than {self.head}. Install the same version on every host, on "
            f"{self.head if is_newer else name!r} first."
        )

    def _admit(
        self, connection: JsonLineConnection, peer: str, hello: Mapping[str, Any]
    ) -> JoinHandshake:
        """Authenticate to a host, and check its proof; return what was agreed on."""
        name, public = str(hello.get("host", "")), str(hello.get("public", ""))
        if self.hosts and (name not in self.hosts or name == self.head):
            raise _RefusedError(f"{peer} says it is {name!r}, which is no other host of the job.")
        own_public, secret = "", self.token.encode()
        if public:
            self._check_may_get_token(peer, name)
            agreed = AgreedSecret()
            own_public = agreed.public
            try:
                secret = agreed.with_other(public)
            except ValueError:
                raise _RefusedError(f"{peer} sends no public key as {name!r}.") from None
        handshake = JoinHandshake(
            secret=secret, host=name, group=str(hello.get("group", "")),
            host_nonce=str(hello.get("nonce", "")), head_nonce=new_nonce(),
            ray_address=self._ray_address, host_public=public, head_public=own_public,
        )  # fmt: skip
        connection.send(
            protocol=JOIN_PROTOCOL, nonce=handshake.head_nonce, address=handshake.ray_address,
            public=own_public, proof=handshake.proof("head"),
        )  # fmt: skip
        if not handshake.proves("host", connection.receive(_HELLO_S).get("proof")):
            raise _RefusedError(
                f"{name!r} at {peer} has another token than {self.head}. Give every host the same "
                "one, or none."
            )
        return handshake

    def _check_may_get_token(self, peer: str, name: str) -> None:
        if not self.sends_token:
            raise _RefusedError(
                f"{name!r} asks for the token, which {self.head} hands out only where it made "
                "it itself and not all hosts have come. Give every host the same one: "
                "--token-file."
            )
        if peer not in addresses_of(name):
            raise _RefusedError(
                f"{peer} asks for the token as {name}, whose addresses are "
                f"{', '.join(addresses_of(name)) or 'unknown'} on {self.head}."
            )

    def _register(self, name: str, joined: _JoinedHost, handshake: JoinHandshake) -> None:
        with self._lock:
            before, self._joined_hosts[name] = self._joined_hosts.get(name), joined
            exit_code = self._exit_code
        if before is not None:  # it reconnects before its old connection was seen to end
            with suppress(OSError):
                before.connection.send(refused=f"{name} has come once more since: run one there.")
            before.connection.close()
        if exit_code is not None:
            joined.connection.send(ended=exit_code)
        gets_token = bool(handshake.host_public)
        token = {"token": handshake.encrypt_token(self.token)} if gets_token else {}
        joined.connection.send(joined=True, **token)

    def _unregister(self, name: str, joined: _JoinedHost) -> None:
        with self._lock:
            if self._joined_hosts.get(name) is not joined:
                return
            del self._joined_hosts[name]
        if self._exit_code is None:
            self.print_line(f"{name} ({joined.group}) has left")


_CONNECT_S = 2.0
_CLIENT_POLL_S = 0.2
_STATUS_INTERVAL_S = 10.0


class JoinClient:
    """The connection to the head; the constructor waits until the head accepts it.

    LaunchError is raised where the head does not answer for `longest_s`. `pause` sleeps for some
    seconds, and raises where this host is asked to stop.
    """

    exit_code: int | None = None  # the job's; None until the head has sent it

    def __init__(
        self, head: str, port: int, *, longest_s: float, pause: Callable[[float], None]
    ) -> None:
        self._head = head
        self._address = f"{head}:{port}"
        self._longest_s = longest_s
        self._pause = pause
        self._deadline_s = time.monotonic() + longest_s
        self._next_status_s = time.monotonic() + _STATUS_INTERVAL_S
        self._connection = self._connect(port)

    def request_join(self, name: str | None, group: str, token: str | None) -> tuple[str, str]:
        """Ask the head to admit this host; return HOST:PORT of the head's Ray node, and its token.

        Without a name the host has its address. A token that this host was given is proved, not
        sent. Raises LaunchError where the head refuses, is lost, or does not answer in time.
        """
        name, nonce = name or self.own_address, new_nonce()
        agreed = AgreedSecret() if token is None else None
        public = "" if agreed is None else agreed.public
        # A head of protocol 1 asks a host that has the token for a proof, and sends none.
        self._send(
            protocol=JOIN_PROTOCOL, host=name, group=group, has_token=True, nonce=nonce,
            public=public,
        )  # fmt: skip
        reply = self._receive_reply()
        self._check_protocol(reply)
        try:
            secret = (token or "").encode()
            if agreed is not None:
                secret = agreed.with_other(str(reply.get("public", "")))
        except ValueError:
            raise self._no_head() from None
        handshake = JoinHandshake(
            secret=secret, host=name, group=group, host_nonce=nonce,
            head_nonce=str(reply.get("nonce", "")), ray_address=str(reply.get("address", "")),
            host_public=public, head_public=str(reply.get("public", "")),
        )  # fmt: skip
        if not handshake.proves("head", reply.get("proof")):
            self._send(proof="")  # so that the head's user is told, too
            raise LaunchError(
                f"The head {self._head} has another token than this host, or what answers at "
                f"{self._address} is not the head. Give every host the same token, or none."
            )
        self._send(proof=handshake.proof("host"))
        self._connection.secure(handshake.message_codes("host"), handshake.message_codes("head"))
        reply = self._receive_reply()
        ray_token = token or handshake.decrypt_token(reply.get("token"))
        if ray_token is None:
            raise self._no_head()
        return handshake.ray_address, ray_token

    def _check_protocol(self, reply: Mapping[str, Any]) -> None:
        """Raise LaunchError where the head has another version of these messages."""
        protocol = reply.get("protocol")
        if protocol == JOIN_PROTOCOL:
            return
        if isinstance(protocol, int) or "challenge" in reply:
            is_newer = isinstance(protocol, int) and protocol > JOIN_PROTOCOL
            where = "on this host" if is_newer else f"on {self._head}"
            raise LaunchError(
                f"The head {self._head} runs {'a newer' if is_newer else 'an older'} version of "
                f"Headrace than this host. Install the same version on every host, {where} first."
            )
        raise self._no_head()

    def _no_head(self) -> LaunchError:
        return LaunchError(
            f"What answers at {self._address} is no head of a job: choose another --port, on every "
            "host."
        )

    @property
    def own_address(self) -> str:
        """This host's address, as the head sees it."""
        return self._connection.own_address

    def report_up(self) -> None:
        """Report to the head that this host's Ray node is up."""
        self._send(up=True)

    def poll(self) -> None:
        """Read a message if one has come; raises LaunchError where the head is lost or refuses."""
        try:
            message = self._connection.receive(0.0)
        except TimeoutError:
            return
        except OSError as error:
            if self.exit_code is None:
                raise self._lost(error) from error
            return
        self._raise_if_refused(message)
        if "ended" in message:
            self.exit_code = int(message["ended"])

    def close(self) -> None:
        """Close the connection; the head waits for that before it takes the cluster down."""
        self._connection.close()

    def _connect(self, port: int) -> JsonLineConnection:
        while True:
            try:
                connection = socket.create_connection((self._head, port), timeout=_CONNECT_S)
            except (OSError, UnicodeError) as error:
                self._wait(str(error))
            else:
                return JsonLineConnection(connection)

    def _send(self, **message: object) -> None:
        # If the head is gone, `receive` raises, after the head's last message.
        with suppress(OSError):
            self._connection.send(**message)

    def _receive_reply(self) -> dict[str, Any]:
        while True:
            try:
                message = self._connection.receive(0.0)
            except TimeoutError:
                self._wait("it does not answer yet")
                continue
            except OSError as error:
                raise self._lost(error) from error
            self._raise_if_refused(message)
            if "ended" in message:
                raise LaunchError(f"The job on {self._head} has ended before this host came.")
            return message

    def _raise_if_refused(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise LaunchError(f"The head {self._head} refuses this host: {message['refused']}")

    def _wait(self, reason: str) -> None:
        now_s = time.monotonic()
        if now_s > self._deadline_s:
            raise LaunchError(
                f"The head does not answer at {self._address} after "
                f"{self._longest_s:.0f} s: {reason}. Run `headrace cluster join` there "
                "too, with the same --port, and let hosts reach one another on all ports."
            )
        if now_s > self._next_status_s:
            print_status(f"waiting for the head {self._address}: {reason}")
            self._next_status_s += _STATUS_INTERVAL_S
        self._pause(_CLIENT_POLL_S)

    def _lost(self, error: OSError) -> LaunchError:
        return LaunchError(
            f"The head {self._head} is lost: {error}. What this host had of the job has ended; see "
            f"what was said last on {self._head}."
        )
