"""The connection of a host to the head of its job: it joins, and learns the job's exit code."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from headrace.cluster.join_server import JsonLineConnection, token_proof
from headrace.core.console import print_status
from headrace.core.errors import LaunchError

_CONNECT_S = 2.0
_POLL_S = 0.2
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
        name = name or self.own_address
        self._send(host=name, group=group, has_token=token is not None)
        reply = self._receive_reply()
        if token is not None:
            self._send(proof=token_proof(token, str(reply.get("challenge", "")), name))
            reply = self._receive_reply()
        ray_address, ray_token = reply.get("address"), token or reply.get("token")
        if not isinstance(ray_address, str) or not isinstance(ray_token, str):
            raise LaunchError(
                f"What answers at {self._address} is no head of a job: choose another --port, on "
                "every host."
            )
        return ray_address, ray_token

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
            print_status(f"headrace: waiting for the head {self._address}: {reason}\n")
            self._next_status_s += _STATUS_INTERVAL_S
        self._pause(_POLL_S)

    def _lost(self, error: OSError) -> LaunchError:
        return LaunchError(
            f"The head {self._head} is lost: {error}. What this host had of the job has ended; see "
            f"what was said last on {self._head}."
        )
