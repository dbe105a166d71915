"""Failures of requests as Headrace's errors, the retry policy, and hedged requests.

The client's own messages contain whole URLs (with presigned queries) and the server's answers (with
key ids and strings to sign), so none of their text is passed on; only texts from this module and
the server's status and error code are.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from obstore.exceptions import BaseError, InvalidPathError

from headrace.core import env
from headrace.core.errors import (
    CorruptError,
    CredentialsError,
    DeniedError,
    HeadraceError,
    NotFoundError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from headrace.data.storage.store import RetryPolicy


class FailureKind(Enum):
    """The kinds of failure: the error, and the remedy."""

    NOT_FOUND = NotFoundError, "Check the URL."
    DENIED = DeniedError, "Check the credentials, and that they may do this."
    CREDENTIALS = CredentialsError, "Renew or correct the credentials."
    THROTTLED = (
        ThrottledError,
        "Use fewer workers or larger reads, or spread the data over prefixes.",
    )
    TIMED_OUT = (
        StorageTimeoutError,
        "Check the network and the endpoint, or raise RetryPolicy.deadline_s.",
    )
    CORRUPT = CorruptError, "Was the object replaced, or is it not what the index says?"
    UNREACHABLE = (
        StorageTimeoutError,
        "Check the endpoint (such as AWS_ENDPOINT_URL) and the network.",
    )
    BROKEN = (
        StorageTimeoutError,
        "Check the network and the server, or raise RetryPolicy.deadline_s.",
    )
    BAD_KEY = StorageError, "Rename the object, or name a folder beside it."
    REFUSED = StorageError, "Check the URL and the connection's settings."

    @property
    def passing(self) -> bool:
        """Whether a retry may help."""
        final = {FailureKind.NOT_FOUND, FailureKind.BAD_KEY, FailureKind.REFUSED, *DENIALS}
        return self not in final


DENIALS = frozenset({FailureKind.DENIED, FailureKind.CREDENTIALS})
"""Failures that other credentials may fix."""


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """One failed request."""

    fault: FailureKind
    detail: str  # safe to print


NO_FILES_NAME = "has an empty, '.' or '..' part, or a control character in it"
"""Why the client refuses to list an object: no file could have its key as a path."""


class WrongAnswerError(Exception):
    """An answer to another request than the one sent; its text is safe to print."""


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_KEY = re.compile(r'Path "(.*?)"(?: contained|: Encountered) ', re.DOTALL)
_UNEXPECTED = re.compile(r"Requested (\d+\.\.\d+), got (\d+\.\.\d+)")
_THROTTLING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
_CREDENTIALS_CODES = {
    "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch", "TokenRefreshRequired",
}  # fmt: skip
_PASSING_CODES = {"RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted"}

# An error's body follows its namespace's URL without a blank, so "<" ends a URL too.
_URL = re.compile(r'https?://[^\s<>"]+')
_METADATA_HOSTS = {"169.254.169.254", "metadata.google.internal", "metadata"}
_METADATA_PATHS = ("latest/api/token", "latest/meta-data", "computeMetadata", "metadata/identity")

# Words in the client's description of a failed transfer, and their meaning.
_TRANSFER = (
    ("dns error", FailureKind.UNREACHABLE, "the host name does not resolve"),
    ("ConnectionRefused", FailureKind.UNREACHABLE, "nothing listens at the endpoint"),
    ("NetworkUnreachable", FailureKind.UNREACHABLE, "the network is unreachable"),
    ("HostUnreachable", FailureKind.UNREACHABLE, "the host is unreachable"),
    ("InvalidCertificate", FailureKind.REFUSED, "the server's certificate is not trusted"),
    ("certificate", FailureKind.REFUSED, "the server's certificate is not trusted"),
    ("URL scheme is not allowed", FailureKind.REFUSED, "the endpoint is not https"),
    ("BareRedirect", FailureKind.REFUSED, "the bucket is in another region; set AWS_REGION"),
    ("NotPartial", FailureKind.REFUSED, "the server ignores ranges"),
    ("RangeNotSupported", FailureKind.REFUSED, "the server ignores ranges"),
    ("IncompleteBody", FailureKind.CORRUPT, "the answer was cut short"),
    ("TimedOut", FailureKind.TIMED_OUT, "no answer in time"),
    ("ConnectionReset", FailureKind.BROKEN, "the connection was reset"),
    ("IncompleteMessage", FailureKind.BROKEN, "the connection was closed without an answer"),
    ("ChannelClosed", FailureKind.BROKEN, "the connection was closed without an answer"),
    ("BrokenPipe", FailureKind.BROKEN, "the connection was closed"),
    ("HttpError", FailureKind.BROKEN, "the transfer failed"),
    ("Header", FailureKind.CORRUPT, "the answer lacks a header that every store sends"),
)


def describe_failure(error: BaseException) -> RequestFailure:
    """Return the failure that an exception of the client, or of ours, means."""
    if isinstance(error, WrongAnswerError):
        return RequestFailure(FailureKind.CORRUPT, str(error))
    if isinstance(error, TimeoutError):
        return RequestFailure(FailureKind.TIMED_OUT, "no answer in time")
    if isinstance(error, InvalidPathError):
        return RequestFailure(FailureKind.BAD_KEY, _bad_key(str(error)))
    message = str(error)
    text = _URL.sub("", message)  # a URL contains the object's name, which may match
    status = _STATUS.search(text)
    failure = _from_status(int(status[1]), _CODE.search(text)) if status else None
    # A busy host will offer them again; any other failure of it is final.
    if any(map(_is_metadata_request, _URL.findall(message))) and not (
        failure and failure.fault.passing
    ):
        return RequestFailure(
            FailureKind.CREDENTIALS, "no credentials were found, and the host offers none"
        )
    is_missing = isinstance(error, FileNotFoundError)
    kind = FailureKind.NOT_FOUND if is_missing else FailureKind.REFUSED
    other = RequestFailure(kind, f"the client failed ({type(error).__name__})")
    return failure or _from_words(text) or other


def is_refused(error: BaseException) -> bool:
    """Return whether a server refuses a request, by these credentials or as such."""
    return describe_failure(error).fault in {FailureKind.REFUSED, *DENIALS}


def _bad_key(message: str) -> str:
    """Return why no file could have an object's key: the client would not even list it."""
    named = _KEY.search(message)
    key = f"the key {named[1]!r}" if named else "an object's key"
    return f"{key} {NO_FILES_NAME}"


def _is_metadata_request(url: str) -> bool:
    """Return whether a URL is a host's credentials service, not an object of such a name."""
    host, _, path = url.partition("://")[2].partition("/")
    if not path.startswith(_METADATA_PATHS):
        return False
    endpoints = (env.AWS_METADATA_ENDPOINT.get(), env.AWS_EC2_METADATA_SERVICE_ENDPOINT.get())
    hosts = {each.partition("://")[2].partition("/")[0] for each in endpoints if each}
    return host in _METADATA_HOSTS or host in hosts


def _from_words(text: str) -> RequestFailure | None:
    unexpected = _UNEXPECTED.search(text)
    if unexpected:
        detail = f"bytes {unexpected[1]} were asked for and {unexpected[2]} came"
        return RequestFailure(FailureKind.CORRUPT, detail)
    return next((RequestFailure(fault, to) for word, fault, to in _TRANSFER if word in text), None)


def _from_status(status: int, found: re.Match[str] | None) -> RequestFailure:
    code = found[1] if found else ""
    detail = f"the server answered {status} {code}".rstrip()
    if status in {429, 503} or code in _THROTTLING_CODES:
        fault = FailureKind.THROTTLED
    elif status == 401 or code in _CREDENTIALS_CODES:
        fault = FailureKind.CREDENTIALS
    elif status == 403 or code == "AccessDenied":
        fault = FailureKind.DENIED
    elif status == 404:
        what = "the bucket" if code == "NoSuchBucket" else "it"
        fault, detail = FailureKind.NOT_FOUND, f"{what} does not exist"
    elif status == 416:
        fault, detail = FailureKind.CORRUPT, "the object is shorter than the range"
    elif status == 412:
        fault, detail = FailureKind.CORRUPT, "the object changed while it was read"
    elif status in {501, 505}:
        fault, detail = FailureKind.REFUSED, f"{detail}: it cannot do this"
    elif status >= 500 or status == 408 or code in _PASSING_CODES:
        fault = FailureKind.BROKEN
    else:
        fault = FailureKind.REFUSED
    return RequestFailure(fault, detail)


_T = TypeVar("_T")
# Not Python's global generator: that one is seeded for the user's transforms, and all forked
# workers would draw the same waits.
_jitter = random.SystemRandom()


class Retrier:
    """Repeats a request until it succeeds, the failure is final, or the deadline has passed.

    `on_denied` is called at most once an operation when credentials are refused; True means that
    there are new ones to try.
    """

    def __init__(self, policy: RetryPolicy, on_denied: Callable[[], bool]) -> None:
        self._policy = policy
        self._on_denied = on_denied
        self._answered = False

    async def run_without_retry(self, target: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `attempt`, which retries itself, so that any failure is final."""
        began = time.monotonic()
        try:
            return await attempt()
        except (BaseError, OSError, ValueError, WrongAnswerError) as error:
            if isinstance(error, HeadraceError):
                raise
            failure = describe_failure(error)
        raise _storage_error(failure, target, 1, time.monotonic() - began)

    async def run(self, target: str, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return the result of `attempt`, which makes one attempt each time it is called.

        Raises the last failure, with `target` (URL and range), as a StorageError.
        """
        began = time.monotonic()
        attempts, wrong_answers, refreshed = 0, 0, False
        before: RequestFailure | None = None
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
            wrong_answers += failure.fault is FailureKind.CORRUPT
            self._answered = self._answered or failure.fault is not FailureKind.UNREACHABLE
            wait_s = self._wait(attempts)
            waited_s = time.monotonic() - began
            if self._is_final(failure, wrong_answers, waited_s + wait_s):
                # Where the deadline ended this attempt, the previous failure says more.
                cut = failure.fault is FailureKind.TIMED_OUT and waited_s >= self._policy.deadline_s
                raise _storage_error(
                    before if cut and before else failure, target, attempts, waited_s
                )
            before = failure
            await asyncio.sleep(wait_s)

    def _wait(self, attempts: int) -> float:
        bound = self._policy.first_wait_s * 2.0 ** min(attempts - 1, 32)
        return _jitter.uniform(0, min(bound, self._policy.longest_wait_s))

    def _is_final(self, failure: RequestFailure, wrong_answers: int, next_s: float) -> bool:
        deadline_s = self._policy.deadline_s
        if failure.fault is FailureKind.UNREACHABLE and not self._answered:
            deadline_s = min(deadline_s, self._policy.unreachable_s)
        too_often = wrong_answers >= self._policy.corrupt_attempts
        return not failure.fault.passing or too_often or next_s >= deadline_s


class Hedge:
    """Sends a second request where the first one is slow; the first answer wins.

    At most `_SHARE` of all requests are hedged after the first `_FREE`: where everything is slow,
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
        """Return the first successful answer; without one, raise the error of `first`."""
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


def _storage_error(
    failure: RequestFailure, target: str, attempts: int, waited_s: float
) -> StorageError:
    detail = failure.detail
    if failure.fault.passing:
        plural = "attempt" if attempts == 1 else "attempts"
        detail = f"{detail} ({attempts} {plural} in {waited_s:.1f} s)"
    kind, remedy = failure.fault.value
    error: StorageError = kind(f"{target}: {detail}. {remedy}")
    return error
