"""A host's connection to the head of its job: it joins by it, and learns of the job's end."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.cluster.join_server import JsonLineConnection, token_proof
from headrace.core.errors import LaunchError

_CONNECT_S = 2.0
_POLL_S = 0.2
_STATUS_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWait:
    """How long a host waits for the head, and what happens meanwhile.

    Attributes:
        longest_s: In seconds.
        pause: Waits for so many seconds, or raises where this host is asked to stop.
        tell: Told every ten seconds who is missing.
    """

    longest_s: float
    pause: Callable[[float], None]
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """What the head tells a host that may take part.

    Attributes:
        ray_address: The Ray node to join.
        token: Ray's token.
    """

    ray_address: str
    token: str


class JoinClient:
    """The connection, from the moment that the head answers.

    Args:
        head: The head's name.
        port: Where it listens.
        patience: How long to wait for it.

    Attributes:
        exit_code: The job's; None while the head has not said that it has ended.

    Raises:
        LaunchError: It does not answer in that time.
    """

    exit_code: int | None = None

    def __init__(self, head: str, port: int, patience: JoinWait) -> None:
        self._head = head
        self._where = f"{head}:{port}"
        self._patience = patience
        self._deadline_s = time.monotonic() + patience.longest_s
        self._tell_s = time.monotonic() + _STATUS_INTERVAL_S
        self._json_connection: JsonLineConnection | None = None
        while self._json_connection is None:
            try:
                connection = socket.create_connection((head, port), timeout=_CONNECT_S)
            except (OSError, UnicodeError) as error:
                self._wait(str(error))
            else:
                self._json_connection = JsonLineConnection(connection)

    def request_join(self, name: str | None, group: str, token: str | None) -> JoinReply:
        """Say who this host is, and return what the head answers.

        Args:
            name: This host's; None: its address.
            group: Its instance group.
            token: Ray's, where this host was given it.

        Raises:
            LaunchError: The head refuses it, is lost, or does not answer in time.
        """
        name = name or self.own_address
        self._send(host=name, group=group, has_token=token is not None)
        answer = self._answer()
        if token is not None:
            self._send(proof=token_proof(token, str(answer.get("challenge", "")), name))
            answer = self._answer()
        ray_address, handed = answer.get("address"), token or answer.get("token")
        if not isinstance(ray_address, str) or not isinstance(handed, str):
            raise LaunchError(
                f"What answers at {self._where} is no head of a job: choose another --port, on "
                "every host."
            )
        return JoinReply(ray_address=ray_address, token=handed)

    @property
    def own_address(self) -> str:
        """This host's address, as the head sees it."""
        return self._open.own_address

    def report_up(self) -> None:
        """Tell the head that this host's Ray node is up."""
        self._send(up=True)

    def look(self) -> None:
        """Take in what the head has said.

        Raises:
            LaunchError: The head is lost, or wants this host no more.
        """
        try:
            words = self._open.receive(0.0)
        except TimeoutError:
            return
        except OSError as error:
            if self.exit_code is None:
                raise self._lost(error) from error
            return
        self._raise_if_refused(words)
        if "ended" in words:
            self.exit_code = int(words["ended"])

    def close(self) -> None:
        """Leave; the head waits for that before it takes the cluster down."""
        self._open.close()

    @property
    def _open(self) -> JsonLineConnection:
        assert self._json_connection is not None
        return self._json_connection

    def _send(self, **words: object) -> None:
        # Where the head has gone, hearing says so, and what it said last.
        with suppress(OSError):
            self._open.send(**words)

    def _answer(self) -> dict[str, Any]:
        while True:
            try:
                words = self._open.receive(0.0)
            except TimeoutError:
                self._wait("it does not answer yet")
                continue
            except OSError as error:
                raise self._lost(error) from error
            self._raise_if_refused(words)
            if "ended" in words:
                raise LaunchError(f"The job on {self._head} has ended before this host came.")
            return words

    def _raise_if_refused(self, words: dict[str, Any]) -> None:
        if "refused" in words:
            raise LaunchError(f"The head {self._head} refuses this host: {words['refused']}")

    def _wait(self, reason: str) -> None:
        now_s = time.monotonic()
        if now_s > self._deadline_s:
            raise LaunchError(
                f"The head does not answer at {self._where} after "
                f"{self._patience.longest_s:.0f} s: {reason}. Run `headrace cluster join` there "
                "too, with the same --port, and let hosts reach one another on all ports."
            )
        if now_s > self._tell_s:
            self._patience.tell(f"headrace: waiting for the head {self._where}: {reason}\n")
            self._tell_s += _STATUS_INTERVAL_S
        self._patience.pause(_POLL_S)

    def _lost(self, error: OSError) -> LaunchError:
        return LaunchError(
            f"The head {self._head} is lost: {error}. What this host had of the job has ended; see "
            f"what was said last on {self._head}."
        )
