"""Faults of processes and hosts: kills, ctrl-C, auxiliary hosts that die, freeze or are slow."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from audit import Audit, audit
from kills import (
    LONGEST_LOG,
    Attempt,
    log_of,
    make_data,
    replacements_in,
    run,
    schedule,
    start,
    wait_for_lines,
)
from kills import SAMPLES as KILLED_SAMPLES
from ledger import LedgerError
from matrix import HANG_S, Case, Figures, Row, wait_for

from jobs import descendants
from offload_servers import OffloadServers

SCRIPTS = Path(__file__).parents[2] / "tests" / "scripts"
EPOCHS = 24


def kills(case: Case) -> Figures:
    """Kill -9 of ranks, workers, launchers, sidecars, collectors, at changing world sizes."""
    return _figures(
        run(case.server, case.folder, list(schedule(4, case.seed, on_cluster=False)), EPOCHS)
    )


def kills_on_a_cluster(case: Case) -> Figures:
    """The same on an emulated Ray cluster: servers, proxies, launchers, ranks."""
    plan = list(schedule(9, case.seed, on_cluster=True))[2::3]
    return _figures(run(case.server, case.folder, plan, EPOCHS))


def is_of_python(code: int, log: str) -> bool:
    """Return whether ctrl-C came before the first line of a script, or of our own, had run.

    Python makes 1 of it then, or dies by it, which a shell calls 130, too.
    """
    is_of_scripts = code == 1 and "init_import_site" in log
    before_ours = "headrace: " not in log and len(log) < LONGEST_LOG
    is_of_ours = code in (1, -signal.SIGINT) and before_ours
    return is_of_scripts or (is_of_ours and (not log or "KeyboardInterrupt" in log))


def ctrl_c(case: Case) -> Figures:
    """Ten times ctrl-C at random moments, each time started again in the same run folder."""
    data, keys = make_data(case.folder)
    for number in range(10):
        world, workers = case.chance.choice((1, 2)), case.chance.randint(0, 2)
        attempt = Attempt(number=number, world=world, workers=workers)
        launcher = start(case.server, case.folder, data, attempt, EPOCHS, run_folder="run")
        try:
            if number % 3 == 2:
                time.sleep(case.chance.uniform(0, 2))  # perhaps before its first step
            else:
                wait_for_lines(launcher, case.folder, attempt, case.chance.randrange(1, 20))
            launcher.send_signal(signal.SIGINT)
            code = launcher.wait(timeout=HANG_S)
        finally:
            launcher.kill()
        log = log_of(case.folder, attempt)
        if code != 130 and not is_of_python(code, log):
            raise LedgerError(f"{attempt} ended with {code}:\n{log}")
    last = Attempt(number=10, world=2)
    code = start(case.server, case.folder, data, last, EPOCHS, run_folder="run").wait(timeout=1200)
    if code:
        raise LedgerError(f"the last attempt ended with {code}:\n{log_of(case.folder, last)}")
    return _figures(audit(case.folder, keys, EPOCHS, replacements_in(case.folder)))


def frozen_job(case: Case) -> Figures:
    """A job is cut off from everything, is started again elsewhere, and comes back."""
    data, keys = make_data(case.folder)
    world = case.chance.choice((1, 2))
    first, second = (Attempt(number=number, world=world) for number in range(2))
    cut_off = start(case.server, case.folder, data, first, EPOCHS)
    processes = [psutil.Process(cut_off.pid)]
    try:
        wait_for_lines(cut_off, case.folder, first, case.chance.randrange(1, 60))
        processes += processes[0].children(recursive=True)
        _each(processes, psutil.Process.suspend)
        other = start(case.server, case.folder, data, second, EPOCHS)
        try:
            wait_for_lines(other, case.folder, second, case.chance.randrange(1, 40))
            _each(reversed(processes), psutil.Process.resume)
            codes = [each.wait(timeout=1200) for each in (other, cut_off)]
        finally:
            other.kill()
    finally:
        _each(processes, psutil.Process.resume)
        cut_off.kill()
    if codes[0] or not codes[1]:
        raise LedgerError(f"ended with {codes}:\n{log_of(case.folder, first)}")
    return _figures(audit(case.folder, keys, EPOCHS, replacements_in(case.folder)))


def _each(processes: Iterable[psutil.Process], do: Callable[[psutil.Process], object]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            do(process)


def auxiliary_hosts(case: Case) -> Figures:
    """Auxiliary hosts die, freeze, come back late, flap, join, and are all lost."""
    script_text = (SCRIPTS / "offload_epochs.py").read_text()
    (case.folder / "offload_epochs.py").write_text(script_text)
    servers = OffloadServers(case.folder)
    names = ["one", "two", "three"]
    for name in names:
        servers.start(name, 2)
    with servers.running("offload_epochs.py") as script:
        _wait_for_epochs(servers, 1)
        for _ in range(6):
            _harm(case, servers, names)
            _wait_for_epochs(servers, 1)
        for process in servers.processes.values():  # all are lost
            process.kill()
        _wait_for_epochs(servers, 2)
        alone = servers.output().splitlines()[-1]
        (case.folder / "enough").touch()
        code = script.wait(HANG_S)
    if code or "Traceback" in servers.output():
        raise LedgerError(f"ended with {code}:\n{servers.output()[-3000:]}")
    if "['here']" not in alone:
        raise LedgerError(f"all auxiliary hosts are lost, and yet: {alone}")
    return {"epochs, each whole": servers.output().count("epoch whole")}


def _harm(case: Case, servers: OffloadServers, names: list[str]) -> None:
    """Do one of the living servers some harm, or let another one join."""
    living = [name for name in names if servers.processes[name].poll() is None]
    what = case.chance.choice(("kill", "freeze", "flap", "kill worker", "join"))
    if what == "join" or not living:
        names.append(f"more-{len(names)}")
        servers.start(names[-1], 2)
        return
    name = case.chance.choice(living)
    if what == "kill":
        servers.signal(name, signal.SIGKILL)
    elif what == "kill worker":
        for pid in descendants(servers.processes[name].pid)[-1:]:
            os.kill(pid, signal.SIGKILL)
    else:
        for _ in range(8 if what == "flap" else 1):
            servers.signal(name, signal.SIGSTOP)
            time.sleep(0.2 if what == "flap" else case.chance.uniform(1, 6))  # the harm itself
            servers.signal(name, signal.SIGCONT)
            time.sleep(0.1)


def _wait_for_epochs(servers: OffloadServers, more: int) -> None:
    before = servers.output().count("epoch whole")
    wait_for(lambda: servers.output().count("epoch whole") >= before + more, "a whole epoch")


def _figures(found: Audit) -> Figures:
    if not found.finished or found.lost or found.duplicated:
        raise LedgerError(f"lost {found.lost}, duplicated {found.duplicated}, {found.finished=}")
    if found.counted != EPOCHS * KILLED_SAMPLES:
        raise LedgerError(f"{found.counted} samples counted")
    return {"samples counted": found.counted, "attempts": found.attempts}


ROWS = (
    Row(
        fault="kill -9 of rank, worker, launcher, sync sidecar, collector; other ranks and workers",
        passes="exact after each restart; no process left",
        run=kills,
    ),
    Row(
        fault="the same on a Ray cluster: server, proxy, launcher, rank",
        passes="exact after each restart; no process left",
        run=kills_on_a_cluster,
    ),
    Row(
        fault="ten times ctrl-C, started again in the same folder",
        passes="starts every time, ends with 130; exact",
        run=ctrl_c,
    ),
    Row(
        fault="a job that is cut off, is started again elsewhere, and comes back",
        passes="what it writes later counts nowhere, and it fails; exact",
        run=frozen_job,
    ),
    Row(
        fault="auxiliary hosts killed, frozen, late, flapping, joining, all lost",
        passes="each epoch whole; all lost: made here",
        run=auxiliary_hosts,
    ),
)
