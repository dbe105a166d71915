"""Threads with results in order, and a pool of spawned processes for packing tasks.

Processes are spawned, not forked, because object-store clients do not survive a fork; they end with
the process that started them, even if it is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

from headrace.core.errors import DatasetError, HeadraceError
from headrace.core.process.parent_death import die_with_parent
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


_REPORT_EVERY_S = 0.2

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
        self._workers: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> TaskPool[Task, Result]:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers.values():
            process.terminate()
        for connection, process in self._workers.items():
            process.join()
            connection.close()

    def run(self, tasks: Iterable[Task], report: ReportCallback) -> Iterator[Result]:
        """Yield results as tasks finish, in no order; raises a task's HeadraceError."""
        waiting = iter(tasks)
        for task in waiting:
            self._send(self._start_worker(), task)
            if len(self._workers) == self._count:
                break
        while self._busy:
            # With a timeout: ctrl-C just before a wait is noticed only when it ends.
            for connection in wait(list(self._busy), timeout=1.0):
                assert isinstance(connection, Connection)
                kind, content = self._receive(connection)
                if kind == "progress":
                    report(*content)
                    continue
                task = self._busy.pop(connection)
                following = next(waiting, None)
                if following is not None:
                    self._send(connection, following)
                yield content

    def _start_worker(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(theirs, self._work, self._name, os.getpid()), daemon=True
        )
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
        process.join()
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
    reporter = _ProgressReporter(connection)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            result = work(task, reporter.add)
        except HeadraceError as error:
            connection.send(("error", error))
            return
        except Exception:  # noqa: BLE001  (the traceback must reach the caller)
            text = f"{name(task)}: a worker failed unexpectedly.\n{traceback.format_exc()}"
            connection.send(("error", DatasetError(text)))
            return
        reporter.flush()
        connection.send(("done", result))


class _ProgressReporter:
    """Sums counts and sends them to the parent every 0.2 s at most."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sums = (0, 0, 0)
        self._next_s = 0.0

    def add(self, samples: int, size_bytes: int, bad: int) -> None:
        self._sums = (self._sums[0] + samples, self._sums[1] + size_bytes, self._sums[2] + bad)
        if time.monotonic() >= self._next_s:
            self.flush()

    def flush(self) -> None:
        if any(self._sums):
            self._connection.send(("progress", self._sums))
        self._sums = (0, 0, 0)
        self._next_s = time.monotonic() + _REPORT_EVERY_S
