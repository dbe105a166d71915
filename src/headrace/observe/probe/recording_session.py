"""The recording of one process: its claim to a rank, its ring of rows, and the probe's faults.

A fault of the probe never reaches the script: it is caught where it happens, counted and recorded,
and after a hundred of them the process stops recording. An error that the script's signal handler
raises inside the probe's code is the script's, and is passed on.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import Any, ParamSpec, TypeVar

from headrace.core import env
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.import_hooks import FAILED_HOOKS
from headrace.core.source_location import (
    LIBRARIES,
    PACKAGE_FOLDER,
    PROJECT,
    CodeFolders,
    code_folders,
)
from headrace.observe.probe.rank_claims import claim_of, claim_rank_file, is_file_claimed_by_another
from headrace.records.layout import RINGS
from headrace.records.live_switch import LiveSwitch
from headrace.records.ring import SUFFIX, RingWriter
from headrace.records.schema import (
    CODE_FOLDERS,
    EVENTS,
    LAUNCHER_HOST,
    LIBRARY_LOADERS,
    LOADERS,
    NOT_RECORDED,
    PROCESSES,
    RANK_ENDED,
    Table,
)


def is_raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler, or a function that it called, raised the error."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler: Any) -> CodeType | None:
    """Return the Python code of a handler: a function, method, partial or callable object."""
    handler = getattr(handler, "func", handler)
    if not hasattr(handler, "__code__") and callable(handler):
        handler = type(handler).__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


_P = ParamSpec("_P")
_R = TypeVar("_R")
_MAX_FAULTS = 100
_RANK_EVERY_NS = 100_000_000
_MAX_REPORTED_FAULTS = 10
_MAX_PENDING_LOADERS = 64  # held until it is known whether this process is a rank


_OFF = memoryview(b"\0")


def _whole_number(variable: env.Variable) -> int | None:
    """Return the number that a variable has; None for any other text, as a script may set."""
    try:
        return variable.get_int()
    except UsageError:
        return None


def folder_rows(folders: CodeFolders) -> list[tuple[str, str]]:
    """Return the kind and the folder of each row of `code_folders`."""
    by_kind = (
        (LIBRARIES, folders.libraries),
        (PACKAGE_FOLDER, folders.packages),
        (PROJECT, folders.projects),
    )
    return [(kind, folder) for kind, found in by_kind for folder in found]


class RecordingSession:
    """The recording of one process: of a "rank", or of a "worker" of one of its loaders.

    Attributes:
        switch_mode: One byte, zero unless this process records; for hooks that run at each step.
    """

    def __init__(self) -> None:
        folder = env.RECORDS_DIR.get()
        self._folder = Path(folder) if folder else None
        self._switch = self._find_switch()
        self._attempt = env.ATTEMPT.get_int(0) or 0
        self._lock = threading.Lock()
        self._failed = self._refused = False
        self._is_undecided = env.DRIVER_SCRIPT.get() is not None
        # Where its rings, and its workers', lie while another process has the rank, and has only
        # asked for batches: they are collected once this one trains.
        self._aside: Path | None = None
        self._loaders: deque[tuple[Table, tuple[float | str, ...]]] = deque(
            maxlen=_MAX_PENDING_LOADERS
        )
        self._begin("rank", -1, -1)

    def _begin(self, role: str, loader: int, worker: int) -> None:
        self.role, self.loader, self.worker = role, loader, worker
        self._writer: RingWriter | None = None
        self._rank_known: int | None = None
        self._rank_now, self._rank_looked_ns = 0, -_RANK_EVERY_NS
        # Workers of a refused rank record nothing either.
        self._failed = self._switch is None or self._refused
        self._has_claim = self._trains = False
        self._is_replaced = False  # by another process, which trains
        self._set_mode()
        self._faults = 0
        self._hooks_reported = 0
        self._folders: CodeFolders | None = None  # as last written
        self._folders_written: set[tuple[str, str]] = set()

    def _find_switch(self) -> LiveSwitch | None:
        if self._folder is None:
            return None
        try:
            return LiveSwitch(self._folder)
        except HeadraceError:  # the run has ended, and nobody would read the records
            return None

    def _set_mode(self) -> None:
        """Have hooks see the live switch, unless this process records nothing anyway."""
        idle = self._failed or self._is_undecided or self._is_replaced
        self.switch_mode = _OFF if self._switch is None or idle else self._switch.mode

    def _fail(self) -> None:
        """Record nothing more in this process."""
        self._failed = True
        self._set_mode()

    @property
    def on(self) -> bool:
        """Whether this process records."""
        return self.switch_mode[0] != 0

    @property
    def working(self) -> bool:
        """Whether this process records, or can again when it is switched on."""
        return not self._failed

    @property
    def deep(self) -> bool:
        """Whether deep recording is on."""
        return self._switch is not None and self._switch.deep

    @property
    def deep_count(self) -> int:
        """How often deep recording was requested."""
        return 0 if self._switch is None else self._switch.deep_count

    @property
    def folder(self) -> Path:
        """The attempt's records folder."""
        assert self._folder is not None  # only used by code that records
        return self._folder

    @property
    def rank(self) -> int:
        """The global rank of this process, or of the rank that it works for."""
        if self._rank_known is not None:
            return self._rank_known
        now_ns = time.monotonic_ns()
        if now_ns >= self._rank_looked_ns + _RANK_EVERY_NS:  # a script may get its rank later
            self._rank_looked_ns = now_ns
            self._rank_now = self._find_rank()
        return self._rank_now

    def _find_rank(self) -> int:
        rank = _whole_number(env.RANK)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._rank_known = int(distributed.get_rank())
            return self._rank_known
        self._rank_known = rank
        if rank is None:  # Lightning's ranks know only this until they have met
            rank = _whole_number(env.LOCAL_RANK)
        return rank or 0

    def works_for(self, rank: int) -> None:
        """Know the rank that this process, started anew, is about to work for."""
        self._rank_known = rank

    def become_worker(self, loader: int, worker: int, rank: int) -> None:
        """Start again as a worker, in its own process."""
        stopped = self._failed or self._is_undecided or self._is_replaced
        self._is_undecided = False
        self._lock = threading.Lock()
        self._begin("worker", loader, worker)
        self._rank_known = rank
        if stopped:
            self._fail()

    def trains(self) -> None:
        """Become a rank if this process was undecided until now: it steps an optimizer."""
        if self._is_undecided:
            self._is_undecided = False
            self._set_mode()
            self._rank_looked_ns = -_RANK_EVERY_NS  # it may have become another rank a moment ago
            # Processes that it starts from now on work for a rank.
            env.change({env.DRIVER_SCRIPT.name: None})
            self.claim_training()
            for table, row in self._loaders:
                self.write(table, *row)
        self.claim_training()

    def claim_rank(self) -> bool:
        """Claim to be this rank's training process; return False if another living process is."""
        self._rank_looked_ns = -_RANK_EVERY_NS  # the process may have become another rank
        if claim_rank_file(self._claim):
            self._has_claim = True
            self._come_forward()
            return True
        if self.stand_aside():
            return True
        self._refuse()
        return False

    def claim_training(self) -> None:
        """Claim the rank as a process that trains, before one that has only asked for batches."""
        if self._trains or self._failed or self._is_undecided or self.role != "rank":
            return
        self._trains = True
        self._rank_looked_ns = -_RANK_EVERY_NS
        if claim_rank_file(self._claim, trains=True):
            self._has_claim, self._is_replaced = True, False
            self._set_mode()
            self._come_forward()
        else:
            self._refuse()

    def check_claim(self) -> bool:
        """Record nothing for now if another process, which trains, has taken this rank over.

        Return whether it has since the last call.
        """
        if self._trains or not self._has_claim or self._is_replaced:
            return False
        claim = claim_of(self._claim)
        self._is_replaced = claim is not None and not claim.is_mine
        self._set_mode()
        return self._is_replaced

    def reclaim(self) -> None:
        """Record again if the process that had taken this rank over has ended."""
        if self._is_replaced and claim_rank_file(self._claim):
            self._is_replaced = False
            self._set_mode()

    def stand_aside(self) -> bool:
        """Keep the rings where they are not collected until this process trains.

        False: the process that has claimed this rank trains itself.
        """
        if self._is_aside:
            return True
        claim = claim_of(self._claim)
        if claim is None or claim.trains:
            return False
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._aside = self.folder / RINGS / f"aside-{os.getpid()}"
        self._aside.mkdir(exist_ok=True)
        return True

    @property
    def _is_aside(self) -> bool:
        return self._aside is not None and self._aside.name == f"aside-{os.getpid()}"

    def _come_forward(self) -> None:
        """Have the rings collected that were kept aside."""
        if not self._is_aside:  # those are a parent's, of which this process was forked
            self._aside = None
        elif self._aside is not None:
            for path in self._aside.iterdir():
                path.rename(self._aside.parent / path.name)

    def _refuse(self) -> None:
        """Record nothing more, and say so: another process is recorded as this rank."""
        self._refused = True
        self._fail()
        name = f"{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}-refused{SUFFIX}"
        writer = RingWriter(self.folder / RINGS / name)
        text = f"{Path(sys.argv[0]).name}, process {os.getpid()}"
        writer.write(EVENTS, self.rank, time.monotonic_ns(), NOT_RECORDED, text, 0.0)
        writer.close()

    def settle_claim(self, *, asked: bool) -> None:
        """Decide at the end whether a process is recorded; `asked`: it would have been."""
        if self._aside is None or not self._is_aside or self._failed:
            return
        if self._trains or claim_rank_file(self._claim):
            self._come_forward()  # also what workers have begun meanwhile
            return
        shutil.rmtree(self._aside, ignore_errors=True)
        if asked:
            self._refuse()
        self._fail()

    @property
    def is_claimed_by_another(self) -> bool:
        """Whether another living process has claimed this rank."""
        return is_file_claimed_by_another(self._claim)

    @property
    def _claim(self) -> Path:
        restart = env.RESTART_COUNT.get() or "0"
        return self.folder / RINGS / f"rank-{self.rank}-{restart}.claim"

    def forked(self) -> None:
        """Start again in a forked child, which gets a ring of its own."""
        self._lock = threading.Lock()
        self._begin(self.role, self.loader, self.worker)

    def write(self, table: Table, *values: float | str) -> None:
        """Write a row; stop recording if that is impossible."""
        if self._failed or self._is_replaced:
            return
        if self._is_undecided:
            if table in {LOADERS, LIBRARY_LOADERS}:
                self._loaders.append((table, values))
            return
        writer = self._writer or self._open()
        if writer is not None:
            writer.write(table, *values)

    def event(self, kind: str, text: str, value: float = 0.0) -> None:
        """Write a row of `events`."""
        self.write(EVENTS, self.rank, time.monotonic_ns(), kind, text, value)

    def write_code_folders(self) -> None:
        """Write the folders of a rank's code that are new: a script may change its import path."""
        folders = code_folders()
        if folders is self._folders or self.role != "rank" or self._is_undecided:
            return
        self._folders = folders
        for row in folder_rows(folders):
            if row not in self._folders_written:
                self._folders_written.add(row)
                self.write(CODE_FOLDERS, self.rank, *row)

    def fault(self, where: str, error: Exception) -> None:
        """Count a fault of the probe, and record the first few.

        An error that a signal handler of the script raised is no fault, and is raised again.
        """
        if is_raised_by_signal(error):
            raise error
        self._faults += 1
        with suppress(Exception):  # the fault may be in writing events
            if self._faults <= _MAX_REPORTED_FAULTS:
                self.event("probe-fault", f"{where}: {type(error).__name__}: {error}", self._faults)
            if self._faults == _MAX_FAULTS:
                self.event("recording-stopped", f"after {_MAX_FAULTS} faults of the probe")
        if self._faults >= _MAX_FAULTS:
            self._fail()

    def close(self) -> None:
        """Close the ring: nothing more will be written."""
        if self._writer is not None:
            self._report_failed_hooks(self._writer)
            if self.role == "rank":  # without it, a process that lives on would seem to hang
                self.event(RANK_ENDED, "the rank records no more, as its script has ended")
            self._writer.close()

    @property
    def _rings(self) -> Path:
        """The folder for this process's ring."""
        if self._aside is None or self._trains:
            return self.folder / RINGS
        claim = claim_of(self._claim)
        is_forward = claim is not None and self._aside.name == f"aside-{claim.pid}"
        return self.folder / RINGS if is_forward else self._aside

    def _open(self) -> RingWriter | None:
        with self._lock:
            if self._writer is None and not self._failed:
                assert self._folder is not None
                now_ns = time.monotonic_ns()
                name = f"{os.uname().nodename}-{os.getpid()}-{now_ns}{SUFFIX}"
                try:
                    self._writer = RingWriter(self._rings / name)
                except OSError:  # no space, or the folder is gone: the script goes on unrecorded
                    self._fail()
                    return None
                self._writer.write(
                    PROCESSES, os.getpid(), os.getppid(), self.role, self.rank, self.loader,
                    self.worker, _whole_number(env.WORLD_SIZE) or 1, now_ns, self._attempt,
                    LAUNCHER_HOST,
                )  # fmt: skip
                self._report_failed_hooks(self._writer)
            return self._writer

    def _report_failed_hooks(self, writer: RingWriter) -> None:
        """Record import hooks that failed since the last call: modules are imported at any time."""
        for failed in FAILED_HOOKS[self._hooks_reported :]:
            writer.write(EVENTS, self.rank, time.monotonic_ns(), "probe-fault", failed, 0.0)
        self._hooks_reported = len(FAILED_HOOKS)


SESSION = RecordingSession()
os.register_at_fork(after_in_child=SESSION.forked)


def guarded(function: Callable[_P, _R]) -> Callable[_P, _R | None]:
    """Return a function of the probe that never raises; it returns None on failure."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        if not SESSION.working:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the script must not feel the probe's faults
            SESSION.fault(function.__qualname__, error)
            return None

    return call
