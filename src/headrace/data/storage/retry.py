"""The one retry policy, and the hedge."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from obstore.exceptions import BaseError

from headrace.core.errors import HeadraceError, StorageError
from headrace.data.storage.config import RetryPolicy
from headrace.data.storage.failures import (
    DENIALS,
    ERRORS,
    Failure,
    Fault,
    WrongAnswerError,
    describe_failure,
)

_T = TypeVar("_T")
# Not Python's global generator: that one is seeded for the user's transforms, and a forked worker
# would draw the same waits as its brothers.
_jitter = random.SystemRandom()


class Retrier:
    """Runs attempts until one succeeds, the failure is final, or the deadline has come.

    Args:
        policy: Waits and deadlines.
        on_denied: Called once an operation when credentials are refused; True means that there
            are new ones to try.
    """

    def __init__(self, policy: RetryPolicy, on_denied: Callable[[], bool]) -> None:
        self._policy = policy
        self._on_denied = on_denied
        self._answered = False

    async def run_once(self, target: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `attempt` returns; it retries inside, so that any failure of it is final.

        Raises:
            StorageError: The failure, translated.
        """
        began = time.monotonic()
        try:
            return await attempt()
        except (BaseError, OSError, ValueError, WrongAnswerError) as error:
            if isinstance(error, HeadraceError):
                raise
            failure = describe_failure(error)
        raise _translated(failure, target, 1, time.monotonic() - began)

    async def run(self, target: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return what `attempt` returns.

        Args:
            target: URL and range, for the error.
            attempt: Makes one attempt each time it is called.

        Raises:
            StorageError: The last failure, translated.
        """
        began = time.monotonic()
        attempts, wrong_answers, refreshed = 0, 0, False
        before: Failure | None = None
        while True:
            left = began + self._policy.deadline_s - time.monotonic()
            failure = None
            try:
                async with asyncio.timeout(left):
                    result = await attempt()
            except (BaseError, OSError, ValueError, WrongAnswerError) as error:
                if isinstance(error, HeadraceError):
                    raise
                failure = describe_failure(error)
            # Outside the handler, so that our errors carry none of the client's text as context.
            attempts += 1
            if failure is None:
                self._answered = True
                return result
            if failure.fault in DENIALS and not refreshed and self._on_denied():
                refreshed = True
                continue
            wrong_answers += failure.fault is Fault.CORRUPT
            self._answered = self._answered or failure.fault is not Fault.UNREACHABLE
            wait_s = self._wait(attempts)
            waited_s = time.monotonic() - began
            if self._is_final(failure, wrong_answers, waited_s + wait_s):
                # Where the deadline cut this attempt short, the one before tells more.
                cut = failure.fault is Fault.TIMED_OUT and waited_s >= self._policy.deadline_s
                raise _translated(before if cut and before else failure, target, attempts, waited_s)
            before = failure
            await asyncio.sleep(wait_s)

    def _wait(self, attempts: int) -> float:
        bound = self._policy.first_wait_s * 2.0 ** min(attempts - 1, 32)
        return _jitter.uniform(0, min(bound, self._policy.longest_wait_s))

    def _is_final(self, failure: Failure, wrong_answers: int, next_s: float) -> bool:
        deadline_s = self._policy.deadline_s
        if failure.fault is Fault.UNREACHABLE and not self._answered:
            deadline_s = min(deadline_s, self._policy.unreachable_s)
        too_often = wrong_answers >= self._policy.corrupt_attempts
        return not failure.fault.passing or too_often or next_s >= deadline_s


class Hedge:
    """Asks a second time where the first answer is slow; the first to come wins.

    At most `_SHARE` of all requests are hedged once `_FREE` have been: where everything is slow,
    twice the load would not make it faster.
    """

    _FREE = 16
    _SHARE = 0.05

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._requests = 0
        self.hedged = 0

    async def run(
        self,
        first: Callable[[], Coroutine[Any, Any, _T]],
        second: Callable[[], Coroutine[Any, Any, _T]],
    ) -> _T:
        """Return the first good answer; with none, raise what `first` raised."""
        self._requests += 1
        tasks = [asyncio.ensure_future(first())]
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._after_s)
            if done or self.hedged >= self._FREE + self._SHARE * self._requests:
                return await tasks[0]
            self.hedged += 1
            tasks.append(asyncio.ensure_future(second()))
            return await _first_good(tasks)
        finally:
            for task in tasks:
                task.cancel()


async def _first_good(tasks: list[asyncio.Task[_T]]) -> _T:
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task.result()
    return tasks[0].result()


def _translated(failure: Failure, target: str, attempts: int, waited_s: float) -> StorageError:
    detail = failure.detail
    if failure.fault.passing:
        plural = "attempt" if attempts == 1 else "attempts"
        detail = f"{detail} ({attempts} {plural} in {waited_s:.1f} s)"
    return ERRORS[failure.fault](f"{target}: {detail}. {_REMEDIES[failure.fault]}")


_REMEDIES = {
    Fault.NOT_FOUND: "Check the URL.",
    Fault.DENIED: "Check the credentials, and that they may do this.",
    Fault.CREDENTIALS: "Renew or correct the credentials.",
    Fault.THROTTLED: "Use fewer workers or larger reads, or spread the data over prefixes.",
    Fault.TIMED_OUT: "Check the network and the endpoint, or raise RetryPolicy.deadline_s.",
    Fault.CORRUPT: "Was the object replaced, or is it not what the index says?",
    Fault.UNREACHABLE: "Check the endpoint (such as AWS_ENDPOINT_URL) and the network.",
    Fault.BROKEN: "Check the network and the server, or raise RetryPolicy.deadline_s.",
    Fault.REFUSED: "Check the URL and the connection's settings.",
}
