"""Agents of hosts that this process emulates by itself: its threads, in the place of Ray's actors.

They take the calls that a gang makes of Ray, so that a job of several hosts runs alike with Ray
and without.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

from headrace.cluster.agent import HostAgent

_CALLS_AT_ONCE = 4  # as for Ray's: while one waits for news, another tells to stop


class _NoRayError(Exception):
    """No call fails as Ray's do: an agent lives as long as whoever calls it."""


class _Exceptions:
    RayError = _NoRayError
    ActorUnavailableError = _NoRayError


class LocalCalls:
    """What a gang asks of Ray, of agents in this process.

    Attributes:
        exceptions: Those of Ray's that it expects; none of them comes.
    """

    exceptions = _Exceptions

    def wait(
        self, calls: Sequence[Future[Any]], *, num_returns: int, timeout: float
    ) -> tuple[list[Future[Any]], list[Future[Any]]]:
        """Wait until a call has returned, and tell those that have from those that have not."""
        when = "FIRST_COMPLETED" if num_returns < len(calls) else "ALL_COMPLETED"
        wait(calls, timeout=timeout, return_when=when)
        done = [call for call in calls if call.done()]
        return done, [call for call in calls if not call.done()]

    def get(self, call: Future[Any]) -> Any:
        """Return what a call returned, or raise what it raised."""
        return call.result()


class LocalActor:
    """An agent in this process; `actor.method.remote(...)` calls a method of it in a thread.

    Args:
        variables: What its programs have beside what is sent: the devices of an emulated host, say.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._agent = HostAgent(variables)
        self._threads = ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="agent")

    def __getattr__(self, method: str) -> _Method:
        """Return what calls a method."""
        return _Method(self._threads, getattr(self._agent, method))

    def close(self) -> None:
        """Kill what it still runs, and remove what it keeps."""
        with suppress(ProcessLookupError):
            self._agent.stop(signal.SIGKILL)
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._agent.leave()


class _Method:
    def __init__(self, threads: ThreadPoolExecutor, call: Callable[..., Any]) -> None:
        self._threads = threads
        self._call = call

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._threads.submit(self._run, arguments)

    def _run(self, arguments: tuple[Any, ...]) -> Any:
        # As Ray does: what another call returns comes first.
        return self._call(
            *(each.result() if isinstance(each, Future) else each for each in arguments)
        )
