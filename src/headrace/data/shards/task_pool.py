"""Threads with results in order, and a pool of spawned processes for packing tasks.

Processes are spawned, not forked, because object-store clients do not survive a fork; they end with
the process that started them, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from headrace.core.errors import DatasetError, HeadraceError
from headrace.core.process.parent_death import ctrl_c_blocked, die_with_parent
from headrace.data.storage import declare_leaf

Task = TypeVar("Task")
Result = TypeVar("Result")


def map_in_order(
    work: Callable[[Task], Result], items: Iterable[Task], at_once: int
) -> Iterator[Result]:
    """Yield work(item) for each item, in order; `work` is called in threads.

    Twice as many items as there are threads are started ahead of use.
    """
    pending: deque[Future[Result]] = deque()
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="headrace-shards")
    try:
        for item in items:
            pending.append(threads.submit(work, item))
            if len(pending) >= 2 * at_once:
                yield wait_for_result(pending.popleft())
        while pending:
            yield wait_for_result(pending.popleft())
    finally:
        # No wait: where the consumer was interrupted, the store may take long to answer.
        threads.shutdown(wait=False, cancel_futures=True)


def wait_for_result(future: Future[Result]) -> Result:
    """Return a future's result; unlike with `future.result()`, ctrl-C always ends the wait.

    A signal that arrives just as the main thread begins to wait for a lock is noticed only when the
    wait ends, so each wait lasts a second at most.
    """
    while not future.done():
        futures.wait([future], timeout=1.0)
    return future.result()


_REPORT_EVERY_S, _HEARTBEAT_S, _SILENCE_S = 0.2, 10.0, 120.0
_START_S = 900.0
"""For a worker to start, in which it imports the caller's main module: maybe torch, by a hundred
workers at once from one network disk."""
_POLL_S = 1.0
_END_S = 10.0  # for a worker that is asked to end

ReportCallback = Callable[[int, int, int], None]
"""Called with the samples, bytes and bad files since the last call."""


class TaskPool(Generic[Task, Result]):
    """Processes that do one kind of task. A context manager: leaving it ends them.

    `work` and `name`, which returns the subject of a task for messages, are pickled.
    """

    def __init__(
        self,
        work: Callable[[Task, ReportCallback], Result],
        name: Callable[[Task], str],
        workers: int,
    ) -> None:
        self._work = work
        self._name = name
        self._context = multiprocessing.get_context("spawn")
        self._count = workers
        self._busy: dict[Connection, Task] = {}
        self._silent_s: dict[Connection, float] = {}
        self._begun: set[Connection] = set()  # those that have sent something
        self._workers: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> TaskPool[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.terminate()
        for connection, process in self._workers.items():
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join(_END_S)
            connection.close()

    def run(self, tasks: Iterable[Task], report: ReportCallback) -> Iterator[Result]:
        """Yield results as tasks finish, in no order; raises a task's HeadraceError.

        DatasetError: a worker has ended, or sent not even a heartbeat for two minutes, or has not
        begun within fifteen.
        """
        waiting = iter(tasks)
        for task in waiting:
            self._send(self._start_worker(), task)
            if len(self._workers) == self._count:
                break
        while self._busy:
            # With a timeout: ctrl-C just before a wait is noticed only when it ends.
            began_s = time.monotonic()
            ready = wait(list(self._busy), timeout=_POLL_S)
            # A wait that took longer was this process's own stop (ctrl-Z), and its workers'.
            self._check_silence(ready, min(time.monotonic() - began_s, _POLL_S))
            for connection in ready:
                assert isinstance(connection, Connection)
                kind, content = self._receive(connection)
                if kind == "progress":
                    report(*content)
                if kind != "done":
                    continue
                task = self._busy.pop(connection)
                following = next(waiting, None)
                if following is not None:
                    self._send(connection, following)
                yield content

    def _check_silence(self, ready: list[Any], waited_s: float) -> None:
        self._begun.update(ready)
        for connection, task in self._busy.items():
            before_s = self._silent_s.get(connection, 0.0)
            silent_s = self._silent_s[connection] = (
                0.0 if connection in ready else before_s + waited_s
            )
            longest_s = _SILENCE_S if connection in self._begun else _START_S
            if silent_s > longest_s:
                raise DatasetError(
                    f"Worker process {self._workers[connection].pid} has said nothing for "
                    f"{longest_s:.0f} s at {self._name(task)}. Was it stopped, or is this host "
                    "out of memory? Run the same command again: what is finished is kept."
                )

    def _start_worker(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._work, self._name, os.getpid()), daemon=True
        )
        resource_tracker.ensure_running()  # its own start lets ctrl-C through again
        with ctrl_c_blocked():
            process.start()
        theirs.close()
        self._workers[ours] = process
        return ours

    def _send(self, connection: Connection, task: Task) -> None:
        self._busy[connection] = task
        with suppress(BrokenPipeError):  # it died while idle; receiving reports it
            connection.send(task)

    def _receive(self, connection: Connection) -> tuple[str, Any]:
        try:
            kind, content = connection.recv()
        except (EOFError, ConnectionResetError):
            raise DatasetError(self._death_message(connection)) from None
        if kind == "error":
            raise content
        return kind, content

    def _death_message(self, connection: Connection) -> str:
        process = self._workers[connection]
        process.join(_END_S)
        code = process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        hint = " Often that is the kernel, out of memory: use fewer workers." if code == -9 else ""
        return (
            f"Worker process {process.pid} {how} at {self._name(self._busy[connection])}."
            f"{hint} Run the same command again: what is finished is kept."
        )


def _serve(
    connection: Connection,
    work: Callable[[Any, ReportCallback], object],
    name: Callable[[Any], str],
    parent_pid: int,
) -> None:
    die_with_parent(parent_pid)
    # Ctrl-C reaches the parent, too, which ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    declare_leaf()
    reports = _Reports(connection)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            result = work(task, reports.add)
        except HeadraceError as error:
            reports.send("error", error)
            return
        except Exception:  # noqa: BLE001  (the traceback must reach the caller)
            text = f"{name(task)}: a worker failed unexpectedly.\n{traceback.format_exc()}"
            reports.send("error", DatasetError(text))
            return
        reports.flush()
        reports.send("done", result)


class _Reports:
    """A worker's end of its connection: counts, every 0.2 s at most, heartbeats and results."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        self._sums = (0, 0, 0)
        self._next_s = 0.0

    def add(self, samples: int, size_bytes: int, bad: int) -> None:
        self._sums = (self._sums[0] + samples, self._sums[1] + size_bytes, self._sums[2] + bad)
        if time.monotonic() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        if any(self._sums):
            self.send("progress", self._sums)
        self._sums = (0, 0, 0)
        self._next_s = time.monotonic() + _REPORT_EVERY_S

    def send(self, kind: str, content: object) -> None:
        with self._sending:
            self._connection.send((kind, content))

    def _send_heartbeats(self) -> None:
        with suppress(OSError):  # the parent is gone, and this process ends
            while True:
                self.send("alive", None)
                time.sleep(_HEARTBEAT_S)
