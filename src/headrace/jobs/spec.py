"""The options of a job: script environment, contract, channels, and sync URLs.

A flag that names one of several things may be repeated. A value is parsed as JSON where it is
JSON, and is a text otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.core.suggestions import choices_hint
from headrace.core.units import parse_seconds
from headrace.data.channels.spec import check_channels, read_modes
from headrace.platforms.sagemaker.files import check_hyperparameters
from headrace.platforms.sagemaker.folders import CHECKPOINT_PATH_FLAG, check_checkpoint_path
from headrace.platforms.script_contract import ContractName
from headrace.platforms.training_job import Distribution
from headrace.records.layout import STEP_GROUP

SCRIPT_FLAGS = {
    "--environment": "NAME=VALUE: a variable of the script; NAME alone: as it is set here.",
    "--dependency": "PATH: a module or package that the script may import.",
    "--metric": "NAME=REGEX: a number that ranks print; the group of the expression is the value.",
    "--requirements": "What every host installs first: a file, or none.",
    "--max-run": "Longest time that the job may take: 3600 (seconds), 90s, 30min, 2h.",
}
"""Help texts of the flags that take a value, by flag."""
DRY_RUN = ("--dry-run", "--dry_run")
"""The flag that describes the job instead of starting it."""
SCRIPT_SPELLINGS = {
    spelling: flag.removeprefix("--").replace("-", "_")
    for flag in SCRIPT_FLAGS
    for spelling in (flag, f"--{flag.removeprefix('--').replace('-', '_')}")
}
"""Option names by each spelling of their flags."""
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions:
    """Options of the script's environment.

    Attributes:
        environment: Variables of the script, by name.
        dependencies: Paths of modules and packages that it may import.
        metrics: Regular expressions for the output of ranks, by metric name.
        requirements: The file that is installed first, or `none`; None: the one in the code
            folder, on a cluster's hosts or where --source-dir names that folder.
        max_run_s: Longest time that the job may take, in seconds; None: no limit.
        dry_run: The job is described, not started.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    dependencies: tuple[str, ...] = ()
    metrics: Mapping[str, str] = field(default_factory=dict)
    requirements: str | None = None
    max_run_s: float | None = None
    dry_run: bool = False

    @classmethod
    def parse(cls, flags: Mapping[str, Sequence[str]]) -> ScriptOptions:
        """Return the options that flags give.

        Args:
            flags: The values of each flag, by option name; `dry_run` only where it is given.

        Raises:
            UsageError: An invalid value.
        """
        limits, files = flags.get("max_run", ()), flags.get("requirements", ())
        return cls(
            requirements=files[-1] if files else None,
            environment=_environment(flags.get("environment", ())),
            dependencies=tuple(_dependency(path) for path in flags.get("dependency", ())),
            metrics=_metrics(flags.get("metric", ())),
            max_run_s=parse_max_run(limits[-1]) if limits else None,
            dry_run="dry_run" in flags,
        )


def add_script_flags(parser: argparse.ArgumentParser) -> None:
    """Add these flags to a parser."""
    for flag, meaning in SCRIPT_FLAGS.items():
        spellings = sorted({flag, flag[:2] + flag[2:].replace("-", "_")})
        parser.add_argument(*spellings, action="append", default=[], help=meaning)
    parser.add_argument(*DRY_RUN, action="store_true", help="Describe it only.")


def script_options(args: argparse.Namespace) -> ScriptOptions:
    """Return the options of parsed flags; raises UsageError."""
    values = {name: getattr(args, name) for name in SCRIPT_SPELLINGS.values()}
    return ScriptOptions.parse(values | ({"dry_run": ["1"]} if args.dry_run else {}))


def parse_max_run(text: str) -> float:
    """Parse the longest time of a job and return seconds; raises UsageError."""
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
    """Raise UsageError unless a regular expression has exactly one value group."""
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
        if not _VARIABLE_NAME.fullmatch(name):
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


CONTRACT_FLAGS = {
    "--contract": "sagemaker, sagemaker-v3 or vertex: what the script is told, and how.",
    "--channel": "NAME=URL or NAME=JSON: an input; where it is, the contract tells the script.",
    "--hyperparameter": "NAME=VALUE: an argument of the script, in the contract's dialect.",
    "--source-dir": "The folder of the code; by default the script's own.",
    "--input-mode": "MODE or NAME=MODE: how it gets to the script: File, Cache, FastFile, Pipe.",
    "--cache-dir": "The folder of channels in mode Cache.",
    "--cache-limit": "How much a cache of channels may hold: 100GB.",
    "--checkpoint-local-path": "Where a script for SageMaker finds its checkpoints, too.",
    "--distribution": "What starts a rank for each device: torch_distributed, smdistributed, ...",
}
"""Help texts of the contract flags, by flag."""
CONTRACT_SPELLINGS = {
    flag: flag.removeprefix("--").replace("-", "_") for flag in CONTRACT_FLAGS
} | {
    f"--{flag.removeprefix('--').replace('-', '_')}": flag.removeprefix("--").replace("-", "_")
    for flag in CONTRACT_FLAGS
}
"""Option names by each spelling of their flags."""
_CHANNELS_NEED_CONTRACT = "a script is told by its contract where its channels are"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractOptions:
    """Options of the script's contract with its platform.

    Attributes:
        contracts: The contracts; empty: torchrun's variables only.
        channels: URLs or paths of the inputs, or JSON with more settings, by channel name.
        hyperparameters: The hyperparameters, by name.
        source_dir: The code folder; None: the script's own.
        distribution: How ranks are started; None: the script runs once on each host.
        processes_per_host: Ranks per host; None: not given.
        input_modes: Input modes by channel name; "" stands for all other channels.
        cache_dir: The folder of channels in mode Cache.
        cache_limit: Largest size of a channel cache; None: what the disk holds.
        checkpoint_local_path: A further path where the script finds its checkpoints; None: none.
    """

    contracts: tuple[ContractName, ...] = ()
    channels: Mapping[str, str] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    source_dir: str | None = None
    distribution: Distribution | None = None
    processes_per_host: int | None = None
    input_modes: Mapping[str, str] = field(default_factory=dict)
    cache_dir: str | None = None
    cache_limit: str | None = None
    checkpoint_local_path: str | None = None

    @property
    def is_any(self) -> bool:
        """Whether the script gets anything by these options."""
        return bool(self.contracts or self.hyperparameters or self.source_dir)

    @classmethod
    def parse(cls, flags: Mapping[str, Sequence[str]]) -> ContractOptions:
        """Return the options that flags give.

        Args:
            flags: The values of each flag, by option name.

        Raises:
            UsageError: An invalid value, or flags that exclude each other.
        """
        contracts = _contracts(flags.get("contract", ()))
        channels = _values_by_name("--channel", flags.get("channel", ()), "URL")
        hyperparameters = {
            name: _hyperparameter_value(text)
            for name, text in _values_by_name(
                "--hyperparameter", flags.get("hyperparameter", ()), "VALUE"
            ).items()
        }
        check_hyperparameters(hyperparameters)
        if channels and not contracts:
            raise UsageError(
                f"--channel {next(iter(channels))}=...: {_CHANNELS_NEED_CONTRACT}. Add --contract "
                "sagemaker (SM_CHANNEL_...) or --contract vertex (AIP_..._DATA_URI)."
            )
        modes = read_modes(flags.get("input_mode", ()))
        cache_dir, cache_limit = _last_value(flags, "cache_dir"), _last_value(flags, "cache_limit")
        check_channels(channels, modes, cache_dir, cache_limit)
        place = _last_value(flags, "checkpoint_local_path")
        return cls(
            input_modes=modes,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            checkpoint_local_path=place
            and check_checkpoint_path(place, contracts, CHECKPOINT_PATH_FLAG),
            contracts=contracts,
            channels=channels,
            hyperparameters=hyperparameters,
            source_dir=_last_value(flags, "source_dir"),
            distribution=_distribution(_last_value(flags, "distribution"), contracts),
        )


def add_contract_flags(parser: argparse.ArgumentParser) -> None:
    """Add these flags to a parser."""
    for flag, meaning in CONTRACT_FLAGS.items():
        spellings = sorted({flag, flag[:2] + flag[2:].replace("-", "_")})
        parser.add_argument(*spellings, action="append", default=[], help=meaning)


def contract_options(args: argparse.Namespace) -> ContractOptions:
    """Return the options of parsed flags; raises UsageError."""
    return ContractOptions.parse(
        {name: getattr(args, name) for name in CONTRACT_SPELLINGS.values()}
    )


def _contracts(texts: Sequence[str]) -> tuple[ContractName, ...]:
    known: tuple[ContractName, ...] = get_args(ContractName)
    found: list[ContractName] = []
    for text in ",".join(texts).split(",") if texts else ():
        name = next((each for each in known if each == text.strip()), None)
        if name is None:
            raise UsageError(f"--contract {text}{choices_hint(text.strip(), known)}")
        if name not in found:
            found.append(name)
    if {"sagemaker", "sagemaker-v3"} <= set(found):
        raise UsageError(
            "--contract sagemaker and --contract sagemaker-v3: they spell the same variables "
            "differently. Give one; sagemaker has what SDK 3 adds, too."
        )
    return tuple(found)


def _values_by_name(flag: str, texts: Sequence[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {text}: write it as {flag} NAME={what}.")
        if name in found:
            raise UsageError(f"{flag} {name}=... is given twice: name each once.")
        found[name] = value
    return found


def _hyperparameter_value(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    # 1.10 and 1e-3 reach the script as typed, not as 1.1 and 0.001.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and json.dumps(value) != text else value


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities are Python's, not JSON's


def _last_value(flags: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = flags.get(name, ())
    return values[-1] if values else None


def _distribution(text: str | None, contracts: tuple[ContractName, ...]) -> Distribution | None:
    if text is None:
        return None
    known: tuple[Distribution, ...] = get_args(Distribution)
    found = next((each for each in known if each == text), None)
    if found is None:
        raise UsageError(f"--distribution {text}{choices_hint(text, known)}")
    if not contracts:
        raise UsageError(
            f"--distribution {text} is of a contract: add --contract sagemaker, say; without one, "
            "torchrun's own flags say how many ranks there are."
        )
    return found


SYNC_FLAGS = {
    "--checkpoint-uri": "URL: where checkpoints are kept while the job runs, and come back from.",
    "--output-path": "URL: where model and output go when the job has ended.",
}
"""Help texts of the sync flags, by flag."""
SYNC_SPELLINGS = {
    spelling: flag.removeprefix("--").replace("-", "_")
    for flag in SYNC_FLAGS
    for spelling in (flag, f"--{flag.removeprefix('--').replace('-', '_')}")
}
"""Option names by each spelling of their flags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Options of files that are synced to URLs.

    Attributes:
        checkpoint_uri: Where checkpoints are synced to; None: only the run folder.
        output_path: Where the script's output is uploaded; None: only the run folder.
    """

    checkpoint_uri: str | None = None
    output_path: str | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is synced."""
        return self.checkpoint_uri is not None or self.output_path is not None

    @classmethod
    def parse(cls, flags: Mapping[str, Sequence[str]]) -> SyncOptions:
        """Return the options that flags give.

        Args:
            flags: The values of each flag, by option name.

        Raises:
            UsageError: An unknown scheme, or a store that other processes cannot read.
        """
        found = {
            name: flags[name][-1] if flags.get(name) else None
            for name in ("checkpoint_uri", "output_path")
        }
        for name, url in found.items():
            if url is not None:
                _check_url(f"--{name.replace('_', '-')}", url)
        return cls(**found)


def add_sync_flags(parser: argparse.ArgumentParser) -> None:
    """Add these flags to a parser."""
    for flag, meaning in SYNC_FLAGS.items():
        spellings = [each for each, name in SYNC_SPELLINGS.items() if name == SYNC_SPELLINGS[flag]]
        parser.add_argument(*spellings, action="append", default=[], help=meaning)


def sync_options(args: argparse.Namespace) -> SyncOptions:
    """Return the options of parsed flags; raises UsageError."""
    return SyncOptions.parse({name: getattr(args, name) for name in SYNC_SPELLINGS.values()})


def _check_url(flag: str, url: str) -> None:
    if not url:
        raise UsageError(f"{flag} is empty: name a URL, such as s3://bucket/folder, or a folder.")
    from headrace.data.storage.urls import parse_url  # the Estimator needs no storage

    try:
        location = parse_url(url)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from error
    if location.kind == "memory":
        raise UsageError(
            f"{flag} {location.url}: memory:// ends with the process that holds it. Name a folder, "
            "or a URL of a store."
        )
    if location.kind == "http":
        raise UsageError(
            f"{flag} {location.url}: a web server tells neither what it holds nor who was first, "
            "so nothing is kept there. Use s3://, gs://, az:// or a folder."
        )
