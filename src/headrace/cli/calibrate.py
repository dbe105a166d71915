"""The `headrace cost calibrate` verb: how fast a core of this host is, for advice on hosts."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.json_output import print_json
from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.core.world import usable_cores

HELP = """Measure how many images a core of this host decodes in a second, all cores busy.

With --output it goes to a file that headrace cost advise --speeds reads: run it on each type.

Example: headrace cost calibrate --instance-type c5.4xlarge --output speeds.csv
"""
_PROGRAM = "headrace.data.transforms.decode_speed"
_SLACK_S = 60.0


def calibrate(
    *,
    instance_type: Annotated[
        str, typer.Option(help="This host's; by default what EC2 or SageMaker says.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to measure.")] = 5.0,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A CSV file, to which the host is added.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the measurement as JSON.")] = False,
) -> None:
    """Measure this host; see `HELP`."""
    from headrace.decide.cost.host_speeds import CALIBRATED, add_speed, rows_to_keep
    from headrace.platforms.instance_groups import this_host_type

    name = instance_type or this_host_type()
    if output is not None and not name:
        raise UsageError(
            "The type of this host is not known, and rows of --output are found by it: add "
            "--instance-type NAME."
        )
    if output is not None:
        rows_to_keep(output)  # raises before time is spent
    cores = usable_cores()
    rates = _rates(cores, seconds)
    row = {
        "InstanceType": name, "ImagesPerCore": round(sum(rates) / cores, 1), "Cores": cores,
        "Method": CALIBRATED, "Day": datetime.now(UTC).date().isoformat(), "Source": _cpu_name(),
    }  # fmt: skip
    if output is not None:
        add_speed(output, row)
    if json:
        print_json(row)
        return
    place = f", added to {output}" if output is not None else ""
    typer.echo(
        f"{row['ImagesPerCore']} images/s a core, {cores} cores at once: {name or 'this host'} "
        f"({row['Source']}){place}"
    )


def _rates(cores: int, seconds: float) -> list[float]:
    """Return the images a second of each of as many processes at once."""
    command = [sys.executable, "-P", "-m", _PROGRAM, str(seconds)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env.child_environment({}))
        for _ in range(cores)
    ]
    try:
        answers = [each.communicate(timeout=seconds + _SLACK_S)[0] for each in processes]
        return [float(answer) for answer in answers]
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise LaunchError(f"The measurement has failed: {error}.") from error
    finally:
        for each in processes:
            each.kill()


def _cpu_name() -> str:
    """Return what the kernel calls the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown CPU"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown CPU"
