"""A script in a process of its own: its command line, and its run to its end, shown and logged."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.core import env
from headrace.core.tied import tied_command
from headrace.launch.own_flags import DirectJob
from headrace.launch.site.sites import Site
from headrace.launch.streams import open_stream, resize
from headrace.launch.supervise import wait_for
from headrace.launch.tee import Tee, raw


def script_command(job: DirectJob, script: str, site: Site) -> list[str]:
    """Return the command line of a script.

    Args:
        job: What the command line asks for.
        script: The script that was found, or a module's name.
        site: What it gets.
    """
    python = env.PYTHON_EXEC.get() or sys.executable
    if site.folder is not None and not job.module:
        script = str(Path(script).absolute())
    module = ["-m"] if job.module else []
    return [python, "-u", *module, script, *site.arguments, *job.arguments]


def run_shown(
    command: Sequence[str],
    *,
    site: Site,
    environment: Mapping[str, str | None],
    log: Path,
    held: frozenset[signal.Signals],
    grace_s: Callable[[], float | None] | None = None,
) -> int:
    """Run a script to its end; return its code, -n for signal n.

    Args:
        command: Its command line.
        site: What it gets.
        environment: Its variables beside those of this process; None removes one.
        log: Where its errors go; its output goes beside.
        held: What `signals_held` gave.
        grace_s: As `wait_for` has it.
    """
    streams = open_stream(sys.stdout.buffer), open_stream(sys.stderr.buffer)
    child = subprocess.Popen(
        tied_command(sys.executable, site.placed(command)),
        stdout=streams[0].written,
        stderr=streams[1].written,
        env=env.child_environment(environment),
        cwd=site.folder,
        close_fds=False,  # what the shell opened, as by <(command), is the script's
    )
    for stream in streams:
        stream.handed_over()
    tees = (
        Tee(streams[0].source, raw(sys.stdout.buffer), log.with_suffix(".stdout")),
        Tee(streams[1].source, raw(sys.stderr.buffer), log),
    )
    returncode = wait_for(
        child, held, own_session=False, resized=lambda: resize(streams), grace_s=grace_s
    )
    for tee in tees:
        tee.close()
    return returncode
