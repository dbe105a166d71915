"""What removing a bottleneck gives, measured: a script's own rate with it and without it."""

from __future__ import annotations

import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cases import SCRIPTS, Case

from cpu_steal import run_undisturbed

LONGEST_S = 300
_ABORTED = "terminate called without an active exception"
"""What torch 2.13 prints where a thread of a process group wants Python as it ends: in ranks of
FSDP, also without Headrace. The script has done its work and printed its rate by then."""
ROUNDS = 3
_RATE = re.compile(r"([\d.]+) \w+/s\b")


def script_environment(data: Path | None) -> dict[str, str]:
    """Return the variables with which a script runs."""
    paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    caches = {} if data is None else {"HF_HOME": str(data / "huggingface")}
    return {**os.environ, **caches, "PYTHONPATH": os.pathsep.join(paths)}


def missing(case: Case) -> list[str]:
    """Return the libraries that the case needs and that cannot be found."""
    return [name for name in case.needs if importlib.util.find_spec(name) is None]


def measured_rates(case: Case, data: Path | None, removal: tuple[str, ...]) -> tuple[float, float]:
    """Return the rates with the bottleneck and without it: medians of interleaved runs.

    Args:
        case: The script.
        data: The folder of its data.
        removal: The arguments that remove the bottleneck.
    """
    rates: dict[tuple[str, ...], list[float]] = {(): [], removal: []}
    for _ in range(ROUNDS):
        for arguments, found in rates.items():
            found.append(run_undisturbed(lambda _, more=arguments: own_rate(case, data, more)))
    return statistics.median(rates[()]), statistics.median(rates[removal])


def own_rate(case: Case, data: Path | None, removal: tuple[str, ...] = ()) -> float:
    """Run a script without Headrace, and return the samples a second that it prints.

    Of a case whose whole run counts, one over its seconds is returned instead.

    Raises:
        SystemExit: The script failed or printed no rate.
    """
    launcher = [sys.executable]
    if case.ranks > 1:
        launcher += ["-m", "torch.distributed.run", *case.flags]
    began = time.perf_counter()
    command = [*launcher, str(case.script), *case.script_arguments(data, removal)]
    done = run_script(command, data, case.working_folder)
    seconds = time.perf_counter() - began
    if case.whole_run:
        return 1 / seconds
    rate = printed_rate(done.stdout, done.stderr)
    if rate is None:
        output = done.stdout + done.stderr
        sys.exit(f"{case.name} printed no rate, such as `12.3 images/s`:\n{output[-4000:]}")
    return rate


def run_script(
    command: list[str], data: Path | None, cwd: Path | None
) -> subprocess.CompletedProcess[str]:
    """Run a script, with or without Headrace.

    Raises:
        SystemExit: It failed, other than by torch's fault after its work was done.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env=script_environment(data), cwd=cwd,
    )  # fmt: skip
    output = done.stdout + done.stderr
    is_done = _ABORTED in output and printed_rate(done.stdout, done.stderr) is not None
    if done.returncode and not is_done:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{output[-4000:]}")
    return done


def run_hanging_script(command: list[str], cwd: Path | None, ended_after_s: float) -> None:
    """Run a script that hangs, and end it by SIGTERM.

    Args:
        command: With or without Headrace; its first process gets the signal.
        cwd: The folder in which it runs; None: this process's own.
        ended_after_s: How long it runs.

    Raises:
        SystemExit: It ended by itself before that.
        subprocess.TimeoutExpired: The signal did not end it.
    """
    # A file, as processes that outlive the first one would keep a pipe open.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=script_environment(None), cwd=cwd
        )
        try:
            process.wait(timeout=ended_after_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(timeout=LONGEST_S)
            return
        finally:
            process.kill()  # does nothing once it has ended
        output.seek(0)
        sys.exit(
            f"{' '.join(command)} was to hang, and ended with {process.returncode}:\n"
            f"{output.read()[-4000:]}"
        )


def printed_rate(stdout: str, stderr: str) -> float | None:
    """Return the last rate that a script printed; None if it printed none.

    Progress bars are on stderr, and so are the lines of a logger, and what Headrace says.
    """
    own = "\n".join(line for line in stderr.splitlines() if not line.startswith("headrace:"))
    rates = _RATE.findall(stdout) or _RATE.findall(own)
    return float(rates[-1]) if rates else None
