"""What a signal handler raises amid the probe's code is the script's; other errors are not."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.observe.probe.rank_recorder import RankRecorder
from headrace.observe.probe.recording_session import SESSION, guarded


class PreemptedError(Exception):
    pass


def preempted(*_: Any) -> None:
    raise PreemptedError


def through_another(*_: Any) -> None:
    preempted()


class Notice:
    def method(self, *_: Any) -> None:
        raise PreemptedError

    def __call__(self, *_: Any) -> None:
        raise PreemptedError


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr(SESSION, "_failed", False)
    monkeypatch.setattr(SESSION, "_faults", 0)
    monkeypatch.setattr(SESSION, "event", lambda _kind, text, _value=0.0: messages.append(text))
    return messages


HANDLERS = [
    preempted, through_another, Notice().method, Notice(), functools.partial(preempted, 1),
]  # fmt: skip


@pytest.mark.parametrize("handler", HANDLERS)
def test_the_script_gets_what_its_handler_raises(handled, recording, handler):
    handled(handler)

    @guarded
    def of_the_probe() -> None:
        signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(PreemptedError):
        of_the_probe()
    assert recording == []


def test_a_fault_of_the_probe_is_reported_and_goes_no_further(handled, recording):
    handled(preempted)

    @guarded
    def of_the_probe() -> None:
        raise PreemptedError

    assert of_the_probe() is None
    assert recording == [f"{of_the_probe.__qualname__}: PreemptedError: "]


def test_a_batch_is_asked_for_again_after_a_signal(handled, recording, monkeypatch):
    """What comes in amid the hook leaves it as if no batch had been asked for."""
    handled(preempted)
    recorder = RankRecorder()
    iterator = iter([])
    monkeypatch.setattr(recorder, "_is_off", lambda **_: recorder._fetching)
    monkeypatch.setattr(recorder, "_start_sampling", lambda: None)
    recorder.grad_is_on = lambda: signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(PreemptedError):
        recorder.fetch_began(iterator)
    recorder.grad_is_on = lambda: True
    assert recorder.fetch_began(iterator) is not None
