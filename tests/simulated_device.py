"""A device that is simulated, as there is none where the tests run: a queue, and events in it."""

from __future__ import annotations


class Stream:
    """A queue of a device.

    Attributes:
        done_ns: When all that it was given is done.
    """

    def __init__(self) -> None:
        self.done_ns = 0


class Device(Stream):
    """Takes its time for what is put into its queues: into itself, unless a stream is named.

    Attributes:
        now_ns: The time.
        events: How many events it has made.
    """

    def __init__(self, now_ns: int = 0) -> None:
        super().__init__()
        self.now_ns = now_ns
        self.events = 0

    def event(self) -> Event:
        self.events += 1
        return Event(self)


class Event:
    """What `torch.Event` is on a real device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.at_ns = 0

    def record(self, stream: Stream | None = None) -> None:
        self.at_ns = max((stream or self._device).done_ns, self._device.now_ns)

    def query(self) -> bool:
        return self.at_ns <= self._device.now_ns

    def elapsed_time(self, end: Event) -> float:
        assert self.query(), "asked of an event that the device has not passed"
        assert end.query(), "asked of an event that the device has not passed"
        return (end.at_ns - self.at_ns) / 1e6
