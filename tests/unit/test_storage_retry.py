"""Retries of requests to object stores: which failures, how long, how often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from obstore.exceptions import GenericError

from headrace.core.errors import (
    CorruptError,
    CredentialsError,
    DeniedError,
    NotFoundError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
    UsageError,
)
from headrace.data.storage import RetryPolicy, StorageConfig
from headrace.data.storage.client.retries import (
    FailureKind,
    Hedge,
    Retrier,
    WrongAnswerError,
    describe_failure,
)

_POLICY = RetryPolicy(first_wait_s=0.001, longest_wait_s=0.01, deadline_s=0.3, unreachable_s=0.05)


_HOST = "http://169.254.169.254"


def _status(status: int, code: str = "") -> GenericError:
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    return GenericError(f"GET http://h/x?sig=SECRET - non-2xx status code: {status} Oops: {body}")


class _Script:
    """Attempts that fail as written, then succeed."""

    def __init__(self, *failures: Exception) -> None:
        self.left = list(failures)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.left:
            raise self.left.pop(0) if len(self.left) > 1 or self.calls < 1000 else self.left[0]
        return "answer"


def _run(attempt: Callable[[], Awaitable[Any]], *, denied: bool = False) -> Any:
    return asyncio.run(Retrier(_POLICY, lambda: denied).run("s3://b/x (bytes 1-2)", attempt))


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (_status(503), FailureKind.THROTTLED),
        (_status(429), FailureKind.THROTTLED),
        (_status(400, "SlowDown"), FailureKind.THROTTLED),
        (_status(403, "AccessDenied"), FailureKind.DENIED),
        (_status(400, "AccessDenied"), FailureKind.DENIED),
        (_status(403), FailureKind.DENIED),
        (_status(401), FailureKind.CREDENTIALS),
        (_status(400, "ExpiredToken"), FailureKind.CREDENTIALS),
        (_status(403, "SignatureDoesNotMatch"), FailureKind.CREDENTIALS),
        (_status(404, "NoSuchBucket"), FailureKind.NOT_FOUND),
        (_status(416, "InvalidRange"), FailureKind.CORRUPT),
        (_status(412), FailureKind.CORRUPT),
        (_status(500, "InternalError"), FailureKind.BROKEN),
        (_status(400, "RequestTimeout"), FailureKind.BROKEN),
        (_status(400, "Other"), FailureKind.REFUSED),
        (_status(501), FailureKind.REFUSED),
        (TimeoutError(), FailureKind.TIMED_OUT),
        (WrongAnswerError("3 came"), FailureKind.CORRUPT),
        (FileNotFoundError("Object not found"), FailureKind.NOT_FOUND),
        (GenericError("Requested 0..10, got 0..5"), FailureKind.CORRUPT),
        (GenericError("kind: Connect ... ConnectionRefused"), FailureKind.UNREACHABLE),
        (GenericError("http://169.254.169.254/latest/api/token TimedOut"), FailureKind.CREDENTIALS),
        (
            GenericError(f"PUT {_HOST}/latest/api/token status code: 404 Not Found"),
            FailureKind.CREDENTIALS,
        ),
        (GenericError(f"GET {_HOST}/latest/meta-data/x status code: 503"), FailureKind.THROTTLED),
        (GenericError("something new"), FailureKind.REFUSED),
    ],
)
def test_failures_are_distinguished(error: Exception, fault: FailureKind) -> None:
    failure = describe_failure(error)
    assert failure.fault is fault
    assert "SECRET" not in failure.detail


@pytest.mark.parametrize(
    "name", ["a%20certificate.jpg", "latest/meta-data/x", "latest/api/token", "computeMetadata/v1"]
)
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("inner: ConnectError( kind: ConnectionRefused )", FailureKind.UNREACHABLE),
        ("source: reqwest::Error { source: TimedOut }", FailureKind.TIMED_OUT),
        (
            'status code: 404 <Error xmlns="http://s3.amazonaws.com/doc/"><Code>NoSuchBucket</Code>',
            FailureKind.NOT_FOUND,
        ),
    ],
)
def test_what_an_object_is_called_is_no_failure(name: str, words: str, fault: FailureKind) -> None:
    for host in ("http://127.0.0.1:9/bucket", "https://bucket.s3.amazonaws.com"):
        failure = describe_failure(
            GenericError(f"GET {host}/{name} in 1 ms: uri: {host}/{name}, {words}")
        )
        assert failure.fault is fault
        assert failure.detail != "it does not exist"  # the code was found too


def test_where_a_host_offers_credentials_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = GenericError("PUT http://127.0.0.1:9/latest/api/token in 1 ms: ConnectionRefused")
    assert describe_failure(error).fault is FailureKind.UNREACHABLE
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/")
    assert describe_failure(error).fault is FailureKind.CREDENTIALS


def test_a_passing_failure_is_tried_again() -> None:
    script = _Script(_status(503), _status(500), TimeoutError(), WrongAnswerError("short"))
    assert _run(script) == "answer"
    assert script.calls == 5


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_status(404), NotFoundError),
        (_status(403), DeniedError),
        (_status(401), CredentialsError),
        (_status(400), StorageError),
    ],
)
def test_a_final_failure_is_not(error: Exception, kind: type[StorageError]) -> None:
    script = _Script(error)
    with pytest.raises(kind, match=r"s3://b/x \(bytes 1-2\): ") as caught:
        _run(script)
    assert script.calls == 1
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [(_status(503), ThrottledError), (_status(500), StorageTimeoutError)],
)
def test_the_deadline_ends_it(error: Exception, kind: type[StorageError]) -> None:
    async def always() -> None:
        raise error

    with pytest.raises(kind, match="attempts in"):
        _run(always)


def test_an_attempt_that_hangs_ends_at_the_deadline() -> None:
    with pytest.raises(StorageTimeoutError, match="no answer in time"):
        _run(lambda: asyncio.sleep(60))


def test_a_deadline_within_an_attempt_reports_what_went_before() -> None:
    calls = []

    async def busy_then_silent() -> None:
        calls.append(1)
        if len(calls) > 2:
            await asyncio.sleep(60)
        raise _status(503)

    with pytest.raises(ThrottledError, match="3 attempts"):
        _run(busy_then_silent)


def test_a_wrong_answer_is_asked_for_three_times() -> None:
    script = _Script(*[WrongAnswerError("10 bytes were asked for and 3 came")] * 10)
    with pytest.raises(CorruptError, match=r"3 came .*3 attempts"):
        _run(script)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_credentials_are_read_again_once(status: int) -> None:
    script = _Script(_status(status))
    assert _run(script, denied=True) == "answer"
    with pytest.raises(DeniedError):
        _run(_Script(_status(status), _status(status)), denied=True)


def test_our_own_errors_pass() -> None:
    with pytest.raises(UsageError, match="mine"):
        _run(_Script(UsageError("mine")))


def test_waits_are_drawn_from_a_window_that_doubles() -> None:
    state = random.getstate()
    retrier = Retrier(RetryPolicy(first_wait_s=1, longest_wait_s=5), lambda: False)
    for attempts, bound in ((1, 1), (2, 2), (3, 4), (4, 5), (100, 5)):
        waits = [retrier._wait(attempts) for _ in range(2000)]
        assert min(waits) < 0.05 * bound
        assert 0.95 * bound < max(waits) <= bound
    assert random.getstate() == state  # that is the user's


def _hedged(first: float | Exception, second: float | Exception) -> tuple[str, int]:
    async def answer(name: str, after: float | Exception) -> str:
        if isinstance(after, Exception):
            await asyncio.sleep(0.1)
            raise after
        await asyncio.sleep(after)
        return name

    async def run() -> tuple[str, int]:
        hedge = Hedge(0.02)
        name = await hedge.run(lambda: answer("first", first), lambda: answer("second", second))
        return name, hedge.hedged

    return asyncio.run(run())


def test_the_first_good_answer_wins() -> None:
    assert _hedged(0, 60) == ("first", 0)
    assert _hedged(60, 0) == ("second", 1)
    assert _hedged(0.3, ValueError("second")) == ("first", 1)
    assert _hedged(ValueError("first"), 0.3) == ("second", 1)
    with pytest.raises(ValueError, match="first"):
        _hedged(ValueError("first"), ValueError("second"))


def test_no_more_than_a_share_is_hedged() -> None:
    async def slow() -> None:
        await asyncio.sleep(0.005)

    async def run() -> int:
        hedge = Hedge(0.001)
        await asyncio.gather(*[hedge.run(slow, slow) for _ in range(400)])
        return hedge.hedged

    assert asyncio.run(run()) <= 16 + 0.05 * 400


def test_settings_that_cannot_be() -> None:
    for wrong in ({"in_flight": 0}, {"hedge_after_s": 0}, {"part_bytes": 100}):
        with pytest.raises(UsageError):
            StorageConfig(**wrong)
    with pytest.raises(UsageError):
        RetryPolicy(deadline_s=0)
