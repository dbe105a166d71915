"""The head's server for hosts that join its job, over connections of JSON lines.

A host connects, says who it is, and stays connected for as long as it is part of the job. A token
that this head made goes to addresses of the hosts of a list that was known before, and only until
all of them are there. A token that was given to every host is not sent: a host proves that it has
it.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.cluster.addresses import addresses_of
from headrace.core.errors import LaunchError, UsageError
from headrace.platforms.instance_groups import check_group_name

_MAX_LINE_BYTES = 16 << 10
_SEND_S = 10.0
# A host that vanished with its machine is noticed after idle + count x interval seconds.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


class JsonLineConnection:
    """One connection; one thread hears, any may say.

    Args:
        connection: Open; it is closed with the conversation.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # not every system has them
                self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._heard = b""
        self._saying = threading.Lock()

    @property
    def own_address(self) -> str:
        """This end's address."""
        return str(self._socket.getsockname()[0])

    def send(self, **words: object) -> None:
        """Send a line.

        Raises:
            OSError: The other one is not there any more.
        """
        line = json.dumps(words).encode() + b"\n"
        with self._saying:
            self._socket.settimeout(_SEND_S)
            self._socket.sendall(line)

    def receive(self, longest_s: float) -> dict[str, Any]:
        """Wait for a line, and return it.

        Args:
            longest_s: Longest wait, in seconds.

        Raises:
            TimeoutError: None came in that time.
            ConnectionError: The other one has gone, or says what is no line of ours.
        """
        deadline_s = time.monotonic() + longest_s
        while b"\n" not in self._heard:
            if len(self._heard) > _MAX_LINE_BYTES:
                raise ConnectionError("what is said there has no end")
            self._heard += self._more(max(0.0, deadline_s - time.monotonic()))
        line, _, self._heard = self._heard.partition(b"\n")
        try:
            words = json.loads(line)
        except ValueError:
            words = None
        if not isinstance(words, dict):
            raise ConnectionError("something else than headrace speaks there")
        return words

    def close(self) -> None:
        """End it; who hears is told so."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _more(self, longest_s: float) -> bytes:
        self._socket.settimeout(longest_s)
        try:
            heard = self._socket.recv(4096)
        except BlockingIOError:
            raise TimeoutError from None
        if not heard:
            raise ConnectionError("it has ended the connection")
        return heard


_HELLO_S = 10.0
_RECEIVE_S = 3600.0
_POLL_S = 0.05
_BACKLOG = 128  # connections that nobody has answered yet


def token_proof(token: str, challenge: str, name: str) -> str:
    """Return what shows that a host has the token, without showing the token."""
    said = f"{challenge} {name}".encode("utf-8", "replace")
    return hmac.new(token.encode(), said, "sha256").hexdigest()


@dataclass(slots=True, eq=False)
class _JoinedHost:
    group: str
    conversation: JsonLineConnection
    is_up: bool = False


class _RefusedError(Exception):
    """A host may not take part; the text says why, to it and on the head."""


class JoinServer:
    """The hosts that have come, and the service on which they say so.

    Args:
        address: The head's own, by which others reach it.
        port: Where it listens.
        head: The head's name.
        group: The head's group.
        hosts: All hosts by name; empty: nobody told which there are.
        token: Ray's.
        hands_out: The head made the token: the others do not have it.
        tell: Told who comes, goes, and is refused.

    Attributes:
        token: Ray's.

    Raises:
        LaunchError: The port is taken.
    """

    def __init__(
        self, *, address: str, port: int, head: str, group: str, hosts: Sequence[str], token: str,
        hands_out: bool, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._head = head
        self._group = group
        self._hosts = tuple(hosts)
        self.token = token
        self._hands_out = hands_out
        self._tell = tell
        self._joined_hosts: dict[str, _JoinedHost] = {}
        self._changing = threading.Lock()
        self._ray_address = ""
        self._ended: int | None = None
        self._listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._listening.bind((address, port))
        except OSError as error:
            self._listening.close()
            raise LaunchError(
                f"{head} cannot listen on {address}:{port}, where other hosts find it: "
                f"{error.strerror}. Choose another --port, one less than a free one, on every host."
            ) from error
        self._listening.listen(_BACKLOG)  # who comes early waits for an answer

    def start(self, ray_address: str) -> None:
        """Answer those that come.

        Args:
            ray_address: The Ray node that they are to join; it is up.
        """
        self._ray_address = ray_address
        threading.Thread(target=self._listen, name="roll-call", daemon=True).start()

    def groups(self) -> dict[str, int]:
        """Return how many hosts of each group are there, the head's group first."""
        counts = {self._group: 1}
        with self._changing:
            for guest in self._joined_hosts.values():
                counts[guest.group] = counts.get(guest.group, 0) + guest.is_up
        return {group: count for group, count in counts.items() if count}

    def missing(self, groups: Mapping[str, int]) -> str:
        """Return who is not there yet, by name where the hosts are known; "": nobody.

        Args:
            groups: How many hosts the job wants, where nobody told which there are.
        """
        if not self._hosts:
            there = self.groups()
            return ", ".join(
                f"group {group} has {there.get(group, 0)} of {hosts}"
                for group, hosts in groups.items()
                if there.get(group, 0) < hosts
            )
        with self._changing:
            guests = dict(self._joined_hosts)
        return ", ".join(
            f"{host} (Ray is starting there)" if host in guests else host
            for host in self._hosts
            if host != self._head and not (host in guests and guests[host].is_up)
        )

    def withhold_token(self) -> None:
        """Hand out the token no more."""
        with self._changing:
            self._hands_out = False

    def end(self, exit_code: int, longest_s: float) -> None:
        """Tell the hosts how the job ended, and wait until they have left.

        Args:
            exit_code: The job's.
            longest_s: Longest wait, in seconds.
        """
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listening.close()
        with self._changing:
            self._ended = exit_code
            guests = list(self._joined_hosts.values())
        for guest in guests:
            with suppress(OSError):
                guest.conversation.send(ended=exit_code)
        deadline_s = time.monotonic() + longest_s
        while self._joined_hosts and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        for guest in guests:
            guest.conversation.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, peer = self._listening.accept()
            except OSError:
                if self._ended is not None or self._listening.fileno() < 0:
                    return
                time.sleep(_POLL_S)  # too many open files, say
                continue
            arguments = [JsonLineConnection(connection), str(peer[0])]
            threading.Thread(target=self._attend, args=arguments, daemon=True).start()

    def _attend(self, conversation: JsonLineConnection, peer: str) -> None:
        name, guest = "", None
        try:
            hello = conversation.receive(_HELLO_S)
            name, group = str(hello.get("host", "")), str(hello.get("group", ""))
            check_group_name(group, f"{peer} says it is in the group {group!r}")
            token = self._admit(conversation, peer, name, has_token=bool(hello.get("has_token")))
            guest = _JoinedHost(group, conversation)
            self._enter(name, guest, token)
            while True:
                with suppress(TimeoutError):
                    words = conversation.receive(_RECEIVE_S)
                    guest.is_up = guest.is_up or bool(words.get("up"))
        except (_RefusedError, UsageError) as refusal:
            self._tell(f"headrace: {refusal}\n")
            with suppress(OSError):
                conversation.send(refused=str(refusal))
        except OSError:
            pass  # it has gone, or never said who it is
        finally:
            conversation.close()
            if guest is not None:
                self._leave(name, guest)

    def _admit(
        self, conversation: JsonLineConnection, peer: str, name: str, *, has_token: bool
    ) -> str | None:
        """Return the token for a host that is to have it; None: it has proved that it has it."""
        if self._hosts and (name not in self._hosts or name == self._head):
            raise _RefusedError(f"{peer} says it is {name!r}, which is no other host of the job.")
        if not has_token:
            if not self._hands_out:
                raise _RefusedError(
                    f"{name!r} asks for the token, which {self._head} hands out only where it made "
                    "it itself and not all hosts have come. Give every host the same one: "
                    "--token-file."
                )
            if peer not in addresses_of(name):
                raise _RefusedError(
                    f"{peer} asks for the token as {name}, whose addresses are "
                    f"{', '.join(addresses_of(name)) or 'unknown'} on {self._head}."
                )
            return self.token
        challenge = secrets.token_hex(16)
        conversation.send(challenge=challenge)
        proof = str(conversation.receive(_HELLO_S).get("proof", ""))
        right = token_proof(self.token, challenge, name)
        if not hmac.compare_digest(proof.encode("utf-8", "replace"), right.encode()):
            raise _RefusedError(
                f"{name!r} at {peer} has another token than {self._head}. Give every host the same "
                "one, or none."
            )
        return None

    def _enter(self, name: str, guest: _JoinedHost, token: str | None) -> None:
        with self._changing:
            before = self._joined_hosts.get(name)
            self._joined_hosts[name] = guest
            ended = self._ended
        if before is not None:  # it has come anew, and nobody has noticed yet that it had gone
            with suppress(OSError):
                before.conversation.send(refused=f"{name} has come once more since: run one there.")
            before.conversation.close()
        if ended is not None:
            guest.conversation.send(ended=ended)
        handed = {} if token is None else {"token": token}
        guest.conversation.send(address=self._ray_address, **handed)

    def _leave(self, name: str, guest: _JoinedHost) -> None:
        with self._changing:
            if self._joined_hosts.get(name) is not guest:
                return
            del self._joined_hosts[name]
        if self._ended is None:
            self._tell(f"headrace: {name} ({guest.group}) has left\n")
