"""The head's list of the hosts that have come: it hands them the token and tells them the end.

A host connects, says who it is, and stays connected for as long as it is part of the job. A token
that this head made goes to addresses of the hosts of a list that was known before, and only until
all of them are there. A token that was given to every host is not sent: a host proves that it has
it.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.cluster.addresses import addresses_of
from headrace.cluster.conversation import Conversation
from headrace.contracts.groups import check_group_name
from headrace.core.errors import LaunchError, UsageError

_HELLO_S = 10.0
_HEAR_S = 3600.0
_LOOK_EVERY_S = 0.05
_WAITING = 128  # connections that nobody has answered yet


def proof_of(token: str, challenge: str, name: str) -> str:
    """Return what shows that a host has the token, without showing the token."""
    said = f"{challenge} {name}".encode("utf-8", "replace")
    return hmac.new(token.encode(), said, "sha256").hexdigest()


@dataclass(slots=True, eq=False)
class _Guest:
    group: str
    conversation: Conversation
    is_up: bool = False


class _RefusedError(Exception):
    """A host may not take part; the text says why, to it and on the head."""


class RollCall:
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
        self._guests: dict[str, _Guest] = {}
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
        self._listening.listen(_WAITING)  # who comes early waits for an answer

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
            for guest in self._guests.values():
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
            guests = dict(self._guests)
        return ", ".join(
            f"{host} (Ray is starting there)" if host in guests else host
            for host in self._hosts
            if host != self._head and not (host in guests and guests[host].is_up)
        )

    def keep_token(self) -> None:
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
            guests = list(self._guests.values())
        for guest in guests:
            with suppress(OSError):
                guest.conversation.say(ended=exit_code)
        deadline_s = time.monotonic() + longest_s
        while self._guests and time.monotonic() < deadline_s:
            time.sleep(_LOOK_EVERY_S)
        for guest in guests:
            guest.conversation.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, peer = self._listening.accept()
            except OSError:
                if self._ended is not None or self._listening.fileno() < 0:
                    return
                time.sleep(_LOOK_EVERY_S)  # too many open files, say
                continue
            arguments = [Conversation(connection), str(peer[0])]
            threading.Thread(target=self._attend, args=arguments, daemon=True).start()

    def _attend(self, conversation: Conversation, peer: str) -> None:
        name, guest = "", None
        try:
            hello = conversation.hear(_HELLO_S)
            name, group = str(hello.get("host", "")), str(hello.get("group", ""))
            check_group_name(group, f"{peer} says it is in the group {group!r}")
            token = self._admit(conversation, peer, name, has_token=bool(hello.get("has_token")))
            guest = _Guest(group, conversation)
            self._enter(name, guest, token)
            while True:
                with suppress(TimeoutError):
                    words = conversation.hear(_HEAR_S)
                    guest.is_up = guest.is_up or bool(words.get("up"))
        except (_RefusedError, UsageError) as refusal:
            self._tell(f"headrace: {refusal}\n")
            with suppress(OSError):
                conversation.say(refused=str(refusal))
        except OSError:
            pass  # it has gone, or never said who it is
        finally:
            conversation.close()
            if guest is not None:
                self._leave(name, guest)

    def _admit(
        self, conversation: Conversation, peer: str, name: str, *, has_token: bool
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
        conversation.say(challenge=challenge)
        proof = str(conversation.hear(_HELLO_S).get("proof", ""))
        right = proof_of(self.token, challenge, name)
        if not hmac.compare_digest(proof.encode("utf-8", "replace"), right.encode()):
            raise _RefusedError(
                f"{name!r} at {peer} has another token than {self._head}. Give every host the same "
                "one, or none."
            )
        return None

    def _enter(self, name: str, guest: _Guest, token: str | None) -> None:
        with self._changing:
            before = self._guests.get(name)
            self._guests[name] = guest
            ended = self._ended
        if before is not None:  # it has come anew, and nobody has noticed yet that it had gone
            with suppress(OSError):
                before.conversation.say(refused=f"{name} has come once more since: run one there.")
            before.conversation.close()
        if ended is not None:
            guest.conversation.say(ended=ended)
        handed = {} if token is None else {"token": token}
        guest.conversation.say(address=self._ray_address, **handed)

    def _leave(self, name: str, guest: _Guest) -> None:
        with self._changing:
            if self._guests.get(name) is not guest:
                return
            del self._guests[name]
        if self._ended is None:
            self._tell(f"headrace: {name} ({guest.group}) has left\n")
