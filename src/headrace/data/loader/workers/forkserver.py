"""The forkserver: a small process that imports what workers need, and forks them.

The training process is never forked: it has threads, an accelerator, object-store clients. The
forkserver is started fresh, receives the loader spec, imports its modules once, and forks each
worker in milliseconds; the workers share its memory. A worker that dies is forked again.

It ends when the loader's end of its control connection closes, however the loader ended; the
kernel ends the workers with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.core.process.parent_death import die_with_parent, ignore_group_signals
from headrace.data.loader.batch_builder import LoaderSpec
from headrace.data.loader.failures import BatchFailure
from headrace.data.loader.library_state import apply_library_settings
from headrace.data.loader.serialization import unpickle
from headrace.data.loader.workers.messages import WorkerDescriptors
from headrace.data.loader.workers.worker import run_worker


class Forkserver:
    """The forkserver of one loader.

    Requests are tuples: ("load", pickled loader spec, working folder), ("fork", worker number),
    ("end workers",). Reports are tuples: ("imported",), ("ready",), ("failed", failure bytes),
    ("died", worker number, exit status), ("ended workers",).
    """

    def __init__(self, control: Connection, descriptors: WorkerDescriptors) -> None:
        self._control = control
        self._descriptors = descriptors
        self._loader_spec: LoaderSpec | None = None
        self._workers: dict[int, int] = {}  # process id -> worker number
        self._wakeup, wakeup_sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_sender, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer requests until the loader has ended."""
        while True:
            for ready in wait([self._control, self._wakeup]):
                if ready is self._control:
                    self._answer(self._control.recv())
                else:
                    os.read(self._wakeup, 4096)
                    self._report_deaths()

    def _answer(self, request: tuple[Any, ...]) -> None:
        match request:
            case ("load", content, folder):
                self._load(content, folder)
            case ("fork", number):
                self._fork(number)
            case _:
                self._end_workers()
                self._control.send(("ended workers",))

    def _load(self, content: bytes, folder: str) -> None:
        self._loader_spec = None
        try:
            os.chdir(folder)
            self._loader_spec = unpickle(content)
            apply_library_settings(self._loader_spec.switches)
            if not self._loader_spec.draws_only_in_samples:
                importlib.import_module("numpy.random")  # so that its generator is seeded in time
        except Exception as error:  # noqa: BLE001 - importing user code may raise anything
            self._control.send(("failed", BatchFailure.of(error).to_bytes()))
            return
        gc.collect()
        gc.freeze()  # the collector would otherwise write to, and so copy, what workers share
        self._control.send(("ready",))

    def _fork(self, number: int) -> None:
        server = os.getpid()
        child = os.fork()
        if child:
            self._workers[child] = number
            return
        status = 1
        try:
            die_with_parent(server)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            assert self._loader_spec is not None  # it comes before the first fork request
            run_worker(number, self._descriptors, self._loader_spec)
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not return into the server
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _report_deaths(self) -> None:
        with contextlib.suppress(ChildProcessError):  # there are no children
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                number = self._workers.pop(ended[0], None)
                if number is not None:
                    self._control.send(("died", number, os.waitstatus_to_exitcode(ended[1])))

    def _end_workers(self) -> None:
        for process_id in self._workers:
            os.kill(process_id, signal.SIGKILL)
        for process_id in list(self._workers):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process_id, 0)
        self._workers.clear()


def main(control_descriptor: int, descriptors: Sequence[Any], modules: list[str]) -> None:
    """Serve the loader at the other end of a control connection, then exit.

    `descriptors` are the fields of `WorkerDescriptors`. `modules` are imported at once; a failure
    is reported when the loader spec needs one.
    """
    ignore_group_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # workers are ended by SIGKILL
    control = Connection(control_descriptor)
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    # When the loader has ended, the kernel ends the workers as this process ends.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        control.send(("imported",))
        Forkserver(control, WorkerDescriptors(*descriptors)).serve()
