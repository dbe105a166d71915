"""Jobs of the cluster benchmarks, and what their scripts printed of their epochs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONGEST_S = 900
SCRIPTS = Path(__file__).parent / "scripts"


def printed_epochs(command: list[str], **extra: str) -> list[dict[str, Any]]:
    """Run a command to its end; return the lines of JSON about epochs that it printed."""
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=LONGEST_S, check=False,
        env={**os.environ, **extra},
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stdout}\n{ended.stderr}")
    lines = [line[line.index("{") :] for line in ended.stdout.splitlines() if '{"epoch"' in line]
    return [json.loads(line) for line in lines]


def headrace(script: str, arguments: list[str], *flags: str) -> list[dict[str, Any]]:
    """Run a script by `headrace run` with these flags, on a cluster where they ask for one."""
    command = [sys.executable, "-m", "headrace.cli.main", "run", *flags]
    return printed_epochs([*command, str(SCRIPTS / script), *arguments])


def printed_epochs_live(
    command: list[str], on_first: Callable[[], None], **extra: str
) -> list[dict[str, Any]]:
    """Run a command likewise, and call `on_first` once its first epoch has ended."""
    epochs: list[dict[str, Any]] = []
    output: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **extra},
    ) as job:  # fmt: skip
        assert job.stdout is not None
        for line in job.stdout:
            output.append(line)
            if '{"epoch"' in line:
                epochs.append(json.loads(line[line.index("{") :]))
                if len(epochs) == 1:
                    on_first()
    if job.returncode:
        raise SystemExit(f"{' '.join(command)}\n{''.join(output)}")
    return epochs


def rate(epochs: list[dict[str, Any]]) -> float:
    """Return samples a second, all epochs after the first together."""
    later = epochs[1:]
    return sum(each["samples"] for each in later) / sum(each["seconds"] for each in later)


def share(epochs: list[dict[str, Any]], name: str) -> float:
    """Return what part `name` has of the seconds of all epochs after the first."""
    later = epochs[1:]
    return sum(each[name] for each in later) / sum(each["seconds"] for each in later)
