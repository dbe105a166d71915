"""The flags of `headrace run` about what is around a script: its variables, its time, its numbers.

`--environment`, `--dependency` and `--metric` may come several times.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.units import parse_seconds
from headrace.records.metrics import STEP_GROUP

FLAGS = {
    "--environment": "NAME=VALUE: a variable of the script; NAME alone: as it is set here.",
    "--dependency": "PATH: a module or package that the script may import.",
    "--metric": "NAME=REGEX: a number that ranks print; the group of the expression is the value.",
    "--requirements": "What every host installs first: a file, or none.",
    "--max-run": "Longest time that the job may take: 3600 (seconds), 90s, 30min, 2h.",
}
"""Each flag with a value, and its help."""
DRY_RUN = ("--dry-run", "--dry_run")
"""The flag that has the job described in place of started."""
SPELLINGS = {
    spelling: flag.removeprefix("--").replace("-", "_")
    for flag in FLAGS
    for spelling in (flag, f"--{flag.removeprefix('--').replace('-', '_')}")
}
"""Each spelling of a flag with a value, and its name among parsed ones."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """What a command line says of what is around a script.

    Attributes:
        environment: Variables of the script, by their names.
        dependencies: Paths of modules and packages that it may import.
        metrics: Regular expressions of what ranks print, by the metrics' names.
        requirements: The file that is installed first, or `none`; None: the one beside the code,
            where a cluster's hosts need it, or --source-dir names the code.
        max_run_s: Longest time that the job may take, in seconds; None: any.
        dry_run: The job is described, not started.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    dependencies: tuple[str, ...] = ()
    metrics: Mapping[str, str] = field(default_factory=dict)
    requirements: str | None = None
    max_run_s: float | None = None
    dry_run: bool = False

    @classmethod
    def parse(cls, told: Mapping[str, Sequence[str]]) -> ScriptOptions:
        """Return what flags say.

        Args:
            told: The values of each flag, by its name in `SPELLINGS`; `dry_run` where it is there.

        Raises:
            UsageError: A value that cannot be.
        """
        limits, files = told.get("max_run", ()), told.get("requirements", ())
        return cls(
            requirements=files[-1] if files else None,
            environment=_environment(told.get("environment", ())),
            dependencies=tuple(_dependency(path) for path in told.get("dependency", ())),
            metrics=_metrics(told.get("metric", ())),
            max_run_s=parse_limit(limits[-1]) if limits else None,
            dry_run="dry_run" in told,
        )


def add_script_flags(parser: argparse.ArgumentParser) -> None:
    """Have a parser know the flags."""
    for flag, meaning in FLAGS.items():
        spellings = sorted({flag, flag[:2] + flag[2:].replace("-", "_")})
        parser.add_argument(*spellings, action="append", default=[], help=meaning)
    parser.add_argument(*DRY_RUN, action="store_true", help="Describe it only.")


def script_options(args: argparse.Namespace) -> ScriptOptions:
    """Return what parsed flags say; raises UsageError."""
    told = {name: getattr(args, name) for name in SPELLINGS.values()}
    return ScriptOptions.parse(told | ({"dry_run": ["1"]} if args.dry_run else {}))


def parse_limit(text: str) -> float:
    """Return the longest time of a job, in seconds; raises UsageError."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        limit_s = float(text)
    elif re.fullmatch(r"\s*\d+(\.\d+)?\s*h\s*", text):
        limit_s = float(text.strip().removesuffix("h")) * 3600
    else:
        try:
            limit_s = parse_seconds(text)
        except UsageError:
            limit_s = 0.0
    if limit_s <= 0:
        raise UsageError(f"--max-run {text}: it is no time. Write it as 3600 (seconds), 30min, 2h.")
    return limit_s


def check_metric(name: str, expression: str, where: str) -> None:
    """Raise UsageError where an expression cannot give a metric's values."""
    try:
        compiled = re.compile(expression)
    except re.error as error:
        raise UsageError(
            f"{where} {name}: {expression!r} is no regular expression: {error}."
        ) from error
    values = compiled.groups - (STEP_GROUP in compiled.groupindex)
    if values != 1:
        raise UsageError(
            f"{where} {name}: {expression!r} has {values} groups, and one is the value: "
            r"loss: ([0-9.]+), say. A group (?P<step>...) beside it may tell the step."
        )


def _environment(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    here = env.whole_environment()
    for text in texts:
        name, equals, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"--environment {name}: a variable's name has letters, digits and '_'. Write it as "
                "--environment NAME=VALUE."
            )
        if name in found:
            raise UsageError(f"--environment {name}=... is given twice: name each once.")
        if equals:
            found[name] = value
        elif name not in here:  # else the script inherits it
            raise UsageError(
                f"--environment {name}: it is not set here. Set it, or write --environment "
                f"{name}=VALUE."
            )
    return found


def _dependency(path: str) -> str:
    found = Path(path).expanduser()
    if not found.exists():
        raise UsageError(f"--dependency {path}: there is no such file or folder in {Path.cwd()}.")
    return str(found.absolute())


def _metrics(texts: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, expression = text.partition("=")
        if not equals or not name:
            raise UsageError(f"--metric {text}: write it as --metric NAME=REGEX.")
        if name in found:
            raise UsageError(f"--metric {name}=... is given twice: name each once.")
        check_metric(name, expression, "--metric")
        found[name] = expression
    return found
