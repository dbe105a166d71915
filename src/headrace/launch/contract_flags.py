"""The flags of `headrace run` about what a script is told: `--contract`, channels, hyperparameters.

Each may come several times. A value is read as JSON where it is JSON, and is a text otherwise.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from headrace.contracts.sagemaker_files import check_hyperparameters
from headrace.contracts.script import ContractName
from headrace.contracts.training_job import Distribution
from headrace.core.errors import UsageError
from headrace.core.nearest import is_one_of
from headrace.launch.channels.channel_flags import check_channels, read_modes
from headrace.launch.site.checkpoint_place import FLAG, check_place

FLAGS = {
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
"""Each flag, and its help."""
SPELLINGS = {flag: flag.removeprefix("--").replace("-", "_") for flag in FLAGS} | {
    f"--{flag.removeprefix('--').replace('-', '_')}": flag.removeprefix("--").replace("-", "_")
    for flag in FLAGS
}
"""Each spelling of a flag, and its name among parsed ones."""
_BY_CONTRACT_ALONE = "a script is told by its contract where its channels are"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractOptions:
    """What a command line says that a script is to be told.

    Attributes:
        contracts: By which contracts; empty: by none but torchrun's.
        channels: URLs or paths of the inputs, or JSON that says more, by their names.
        hyperparameters: By their names.
        source_dir: The folder of the code; None: the script's own.
        distribution: What starts the ranks; None: the script runs once on each host.
        processes_per_host: How many ranks a host was asked to have; None: nobody said.
        input_modes: How channels' data get to the script, by their names; "": all others'.
        cache_dir: The folder of channels in mode Cache.
        cache_limit: How much a cache of channels may hold; None: what the disk does.
        checkpoint_local_path: Where the script finds its checkpoints, too; None: nowhere else.
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
        """Whether the script is told anything."""
        return bool(self.contracts or self.hyperparameters or self.source_dir)

    @classmethod
    def parse(cls, told: Mapping[str, Sequence[str]]) -> ContractOptions:
        """Return what flags say.

        Args:
            told: The values of each flag, by its name in `SPELLINGS`.

        Raises:
            UsageError: A value that cannot be, or flags that do not go together.
        """
        contracts = _contracts(told.get("contract", ()))
        channels = _named("--channel", told.get("channel", ()), "URL")
        hyperparameters = {
            name: _value(text)
            for name, text in _named(
                "--hyperparameter", told.get("hyperparameter", ()), "VALUE"
            ).items()
        }
        check_hyperparameters(hyperparameters)
        if channels and not contracts:
            raise UsageError(
                f"--channel {next(iter(channels))}=...: {_BY_CONTRACT_ALONE}. Add --contract "
                "sagemaker (SM_CHANNEL_...) or --contract vertex (AIP_..._DATA_URI)."
            )
        modes = read_modes(told.get("input_mode", ()))
        cache_dir, cache_limit = _last(told, "cache_dir"), _last(told, "cache_limit")
        check_channels(channels, modes, cache_dir, cache_limit)
        place = _last(told, "checkpoint_local_path")
        return cls(
            input_modes=modes,
            cache_dir=cache_dir,
            cache_limit=cache_limit,
            checkpoint_local_path=place and check_place(place, contracts, FLAG),
            contracts=contracts,
            channels=channels,
            hyperparameters=hyperparameters,
            source_dir=_last(told, "source_dir"),
            distribution=_distribution(_last(told, "distribution"), contracts),
        )


def add_contract_flags(parser: argparse.ArgumentParser) -> None:
    """Have a parser know the flags."""
    for flag, meaning in FLAGS.items():
        spellings = sorted({flag, flag[:2] + flag[2:].replace("-", "_")})
        parser.add_argument(*spellings, action="append", default=[], help=meaning)


def contract_options(args: argparse.Namespace) -> ContractOptions:
    """Return what parsed flags say; raises UsageError."""
    return ContractOptions.parse({name: getattr(args, name) for name in SPELLINGS.values()})


def _contracts(texts: Sequence[str]) -> tuple[ContractName, ...]:
    known: tuple[ContractName, ...] = get_args(ContractName)
    found: list[ContractName] = []
    for text in ",".join(texts).split(",") if texts else ():
        name = next((each for each in known if each == text.strip()), None)
        if name is None:
            raise UsageError(f"--contract {text}{is_one_of(text.strip(), known)}")
        if name not in found:
            found.append(name)
    if {"sagemaker", "sagemaker-v3"} <= set(found):
        raise UsageError(
            "--contract sagemaker and --contract sagemaker-v3: they spell the same variables "
            "differently. Give one; sagemaker has what SDK 3 adds, too."
        )
    return tuple(found)


def _named(flag: str, texts: Sequence[str], what: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{flag} {text}: write it as {flag} NAME={what}.")
        if name in found:
            raise UsageError(f"{flag} {name}=... is given twice: name each once.")
        found[name] = value
    return found


def _value(text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text
    # 1.10 and 1e-3 are what the script is to get: not 1.1 and 0.001.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and json.dumps(value) != text else value


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities are Python's, not JSON's


def _last(told: Mapping[str, Sequence[str]], name: str) -> str | None:
    values = told.get(name, ())
    return values[-1] if values else None


def _distribution(text: str | None, contracts: tuple[ContractName, ...]) -> Distribution | None:
    if text is None:
        return None
    known: tuple[Distribution, ...] = get_args(Distribution)
    found = next((each for each in known if each == text), None)
    if found is None:
        raise UsageError(f"--distribution {text}{is_one_of(text, known)}")
    if not contracts:
        raise UsageError(
            f"--distribution {text} is of a contract: add --contract sagemaker, say; without one, "
            "torchrun's own flags say how many ranks there are."
        )
    return found
