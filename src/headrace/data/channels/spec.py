"""The specification of a channel: URL, input mode, distribution and groups, read from flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.core.errors import UsageError
from headrace.core.suggestions import choices_hint, did_you_mean
from headrace.core.units import parse_bytes
from headrace.platforms.training_job import Channel, ChannelMode, DataDistribution

SCRIPT_MODES: dict[str, ChannelMode] = {
    "File": "File", "Cache": "File", "FastFile": "File", "Mount": "File",
    "Pipe": "Pipe", "Stream": "Pipe",
}  # fmt: skip
"""The input modes, and what a script is told of each: folders are folders, whatever shows them.

SageMaker writes "File" for its FastFile, too (your-algorithms-training-algo-running-container.html
in docs.aws.amazon.com).
"""
_DISTRIBUTIONS: dict[str, DataDistribution] = {
    "FullyReplicated": "FullyReplicated",
    "ShardedByS3Key": "ShardedByS3Key",
    "ShardedByKey": "ShardedByS3Key",
}
# As SageMaker takes it (docs.aws.amazon.com, API_Channel), and what is another's place there.
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RESERVED_NAMES = (".", "..", "code", "sm_drivers")
_KEYS = ("uri", "mode", "distribution", "groups", "content_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """A channel, as a command line names it.

    Attributes:
        name: What it is called.
        uri: The URL or path of its data; never printed as it is.
        mode: How they get to the script: one of `SCRIPT_MODES`.
        distribution: Whether each host has all of them.
        groups: The instance groups whose hosts have it; empty: all.
        content_type: Of its objects; None: not told.
    """

    name: str
    uri: str
    mode: str = "File"
    distribution: DataDistribution = "FullyReplicated"
    groups: tuple[str, ...] = ()
    content_type: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this host."""
        return "://" not in self.uri or self.uri.lower().startswith("file://")

    @property
    def is_mounted(self) -> bool:
        """Whether it is shown as a folder whose files are fetched as they are wanted."""
        return self.mode in {"FastFile", "Mount"}

    @property
    def is_piped(self) -> bool:
        """Whether it is streamed, and nothing of it lies on this host."""
        return SCRIPT_MODES[self.mode] == "Pipe"

    @property
    def path(self) -> Path:
        """Where it is on this host, if it is local."""
        return Path(self.uri.removeprefix("file://")).expanduser().absolute()

    def script_channel(self) -> Channel:
        """Return it as a script is told of it."""
        return Channel(
            name=self.name,
            mode=SCRIPT_MODES[self.mode],
            distribution=self.distribution,
            groups=self.groups,
            content_type=self.content_type,
        )


class ChannelOptions(Protocol):
    """What a job says of its channels."""

    @property
    def channels(self) -> Mapping[str, str]:
        """URLs or paths of the inputs, or JSON that says more, by their names."""
        ...

    @property
    def input_modes(self) -> Mapping[str, str]:
        """How channels' data get to the script, by their names; "": all others'."""
        ...

    @property
    def cache_dir(self) -> str | None:
        """The folder of channels in mode Cache."""
        ...

    @property
    def cache_limit(self) -> str | None:
        """How much a cache of channels may hold; None: what the disk does."""
        ...


def read_modes(texts: Sequence[str]) -> dict[str, str]:
    """Return the input modes by channel, "" for all others; raises UsageError."""
    modes: dict[str, str] = {}
    for text in texts:
        name, equals, mode = text.rpartition("=")
        if equals and not name:
            raise UsageError(f"--input-mode {text}: write it as MODE, or as NAME=MODE.")
        if name in modes:
            which = f"{name}=..." if name else "for all channels"
            raise UsageError(f"--input-mode {which} is given twice: say it once.")
        modes[name] = check_choice(SCRIPT_MODES, mode, f"--input-mode {text}")
    return modes


def read_channels(channels: Mapping[str, str], modes: Mapping[str, str]) -> dict[str, ChannelSpec]:
    """Return what is said of each channel; raises UsageError."""
    for name in filter(None, modes):
        if name not in channels:
            raise UsageError(
                f"--input-mode {name}={modes[name]}: there is no channel {name}."
                f"{did_you_mean(name, channels)} Name it by --channel {name}=URL."
            )
    _check_names(channels)
    specs = {}
    for name, text in channels.items():
        told = _read_json(name, text) if text.lstrip().startswith("{") else {"uri": text}
        mode = modes.get(name) or told.pop("mode", None) or modes.get("") or "File"
        told.pop("mode", None)
        specs[name] = ChannelSpec(name=name, mode=mode, **told)
    _check_pipes(specs)
    return specs


def check_channels(
    channels: Mapping[str, str],
    modes: Mapping[str, str],
    cache_dir: str | None,
    cache_limit: str | None,
) -> None:
    """Raise UsageError for what flags say of channels and cannot be."""
    for spec in read_channels(channels, modes).values():
        if spec.mode == "Cache" and cache_dir is None:
            raise UsageError(
                f"--channel {spec.name}: in mode Cache it lies in a folder of your choice. Name "
                "one: --cache-dir FOLDER."
            )
    if cache_limit is not None:
        parse_cache_limit(cache_limit)


def parse_cache_limit(text: str, said: str = "--cache-limit") -> int:
    """Return how much a cache may hold, in bytes; raises UsageError.

    Args:
        text: What was said of it.
        said: By what name.
    """
    try:
        found = parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{said}: {error}") from None
    if not found:
        raise UsageError(f"{said} {text}: a cache that holds nothing holds no channel.")
    return found


def check_choice(known: Iterable[str], text: str, said: str) -> str:
    """Return a text that is one of those known; raises UsageError with the nearest spelling."""
    known = list(known)
    if text in known:
        return text
    raise UsageError(f"{said}{choices_hint(text, known)}")


def _check_names(names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:  # each is the name of a folder, and of a variable
        if not _CHANNEL_NAME.fullmatch(name) or name in _RESERVED_NAMES:
            raise UsageError(
                f"--channel {name}=...: a channel's name has letters, digits, '.', '-' and '_', 64 "
                f"at most, and is none of {', '.join(_RESERVED_NAMES)}."
            )
        twin = known.setdefault(name.upper(), name)
        if twin != name:
            raise UsageError(
                f"--channel {name}=... and --channel {twin}=...: scripts are told of both as "
                f"SM_CHANNEL_{name.upper()}. Rename one."
            )


def _check_pipes(specs: Mapping[str, ChannelSpec]) -> None:
    for name in specs:
        piped, _, number = name.rpartition("_")
        if number.isdecimal() and piped in specs and specs[piped].is_piped:
            raise UsageError(
                f"--channel {name}=...: in mode {specs[piped].mode} that is a pipe of channel "
                f"{piped}. Rename one of them."
            )


def _read_json(name: str, text: str) -> dict[str, Any]:
    said = f"--channel {name}"
    try:
        told = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{said}: what begins with '{{' is JSON, and this is none ({error}). Write it as "
            f'\'{{"uri": "s3://bucket/folder"}}\'.'
        ) from None
    for key in told:
        check_choice(_KEYS, key, f"{said}: {key}")
    for key, value in told.items():
        _check_value(said, key, value)
    if not told.get("uri"):
        raise UsageError(f'{said}: where are its data? Add "uri": "s3://bucket/folder".')
    if "mode" in told:
        check_choice(SCRIPT_MODES, told["mode"], f"{said}: mode {told['mode']}")
    if "distribution" in told:
        spelled = told["distribution"]
        check_choice(_DISTRIBUTIONS, spelled, f"{said}: distribution {spelled}")
        told["distribution"] = _DISTRIBUTIONS[spelled]
    told["groups"] = tuple(told.get("groups", ()))
    return dict(told)


def _check_value(said: str, key: str, value: object) -> None:
    if key == "groups":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(f'{said}: groups is a list of names: "groups": ["gpu"].')
    elif not isinstance(value, str):
        raise UsageError(f"{said}: {key} is a text, in double quotes.")
