"""The specification of a channel: URL, input mode, distribution and groups, read from flags."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.core import env
from headrace.core.errors import UsageError, choices_hint, did_you_mean
from headrace.core.units import parse_bytes
from headrace.platforms.training_job import Channel, ChannelMode, DataDistribution

SCRIPT_MODES: dict[str, ChannelMode] = {
    "File": "File", "Cache": "File", "FastFile": "File", "Mount": "File",
    "Pipe": "Pipe", "Stream": "Pipe",
}  # fmt: skip
"""The input modes, and the mode that a script sees: mounted folders are folders, too.

SageMaker writes "File" for its FastFile, too (your-algorithms-training-algo-running-container.html
in docs.aws.amazon.com).
"""
_DISTRIBUTIONS: dict[str, DataDistribution] = {
    "FullyReplicated": "FullyReplicated",
    "ShardedByS3Key": "ShardedByS3Key",
    "ShardedByKey": "ShardedByS3Key",
}
# SageMaker's rule (docs.aws.amazon.com, API_Channel), and its reserved folders.
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_RESERVED_NAMES = (".", "..", "code", "sm_drivers")
_KEYS = ("uri", "mode", "distribution", "groups", "content_type")
CACHE_DIR_FLAG = "--cache-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSpec:
    """A channel as specified on the command line."""

    name: str
    uri: str  # the URL or path of its data; may contain secrets
    mode: str = "File"  # one of `SCRIPT_MODES`
    distribution: DataDistribution = "FullyReplicated"
    groups: tuple[str, ...] = ()  # instance groups whose hosts get it; empty for all
    content_type: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this host."""
        return "://" not in self.uri or self.uri.lower().startswith("file://")

    @property
    def is_mounted(self) -> bool:
        """Whether it is mounted as a folder, whose files are fetched on demand."""
        return self.mode in {"FastFile", "Mount"}

    @property
    def is_piped(self) -> bool:
        """Whether it is streamed, with no files on this host."""
        return SCRIPT_MODES[self.mode] == "Pipe"

    @property
    def path(self) -> Path:
        """Its path on this host, if it is local, as `open_store` reads it."""
        from headrace.data.storage.urls import parse_url  # the Estimator needs no storage

        return Path(parse_url(self.uri).prefix)

    def script_channel(self) -> Channel:
        """Return the channel as a script sees it."""
        return Channel(
            name=self.name,
            mode=SCRIPT_MODES[self.mode],
            distribution=self.distribution,
            groups=self.groups,
            content_type=self.content_type,
        )


class ChannelOptions(Protocol):
    """A job's options about channels."""

    @property
    def channels(self) -> Mapping[str, str]:
        """URLs or paths of the inputs, or JSON objects with more fields, by name."""

    @property
    def input_modes(self) -> Mapping[str, str]:
        """The input modes of channels, by name; "" for all others."""

    @property
    def cache_dir(self) -> str | None:
        """The folder of channels in mode Cache."""

    @property
    def cache_limit(self) -> str | None:
        """The limit of a cache of channels; None for the disk's."""


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
    """Return the specification of each channel; raises UsageError."""
    for name in filter(None, modes):
        if name not in channels:
            raise UsageError(
                f"--input-mode {name}={modes[name]}: there is no channel {name}."
                f"{did_you_mean(name, channels)} Name it by --channel {name}=URL."
            )
    _check_names(channels)
    specs = {}
    for name, text in channels.items():
        fields = _read_json(name, text) if text.lstrip().startswith("{") else {"uri": text}
        if not fields.get("uri", "-"):
            raise UsageError(f"--channel {name}= is empty: name a URL, a folder or a file.")
        mode = modes.get(name) or fields.pop("mode", None) or modes.get("") or "File"
        fields.pop("mode", None)
        specs[name] = ChannelSpec(name=name, mode=mode, **fields)
    _check_pipes(specs)
    return specs


def check_channels(
    channels: Mapping[str, str],
    modes: Mapping[str, str],
    cache_dir: str | None,
    cache_limit: str | None,
) -> None:
    """Raise UsageError for invalid flags about channels."""
    for spec in read_channels(channels, modes).values():
        if spec.mode != "Cache":
            continue
        if cache_dir is None:
            raise UsageError(
                f"--channel {spec.name}: in mode Cache it lies in a folder of your choice. Name "
                f"one: {CACHE_DIR_FLAG} FOLDER."
            )
        from headrace.data.storage.urls import cache_folder  # as in `ChannelSpec.path`

        cache_folder(cache_dir, CACHE_DIR_FLAG)
    if cache_limit is not None:
        parse_cache_limit(cache_limit)


def parse_cache_limit(text: str, said: str = "--cache-limit") -> int:
    """Return the limit of a cache in bytes; raises UsageError, which names the flag."""
    try:
        found = parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{said}: {error}") from None
    if not found:
        raise UsageError(f"{said} {text}: a cache that holds nothing holds no channel.")
    return found


def check_choice(known: Iterable[str], text: str, said: str) -> str:
    """Return the text if it is one of those known; raises UsageError with the nearest one."""
    known = list(known)
    if text in known:
        return text
    raise UsageError(f"{said}{choices_hint(text, known)}")


def _check_names(names: Iterable[str]) -> None:
    known: dict[str, str] = {}
    for name in names:  # each names a folder and a variable
        if not _CHANNEL_NAME.fullmatch(name) or name in _RESERVED_NAMES:
            raise UsageError(
                f"--channel {name}=...: a channel's name has letters, digits, '.', '-' and '_', 64 "
                f"at most, and is none of {', '.join(_RESERVED_NAMES)}."
            )
        twin = known.setdefault(name.upper(), name)
        if twin != name:
            raise UsageError(
                f"--channel {name}=... and --channel {twin}=...: scripts get both as "
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
    label = f"--channel {name}"
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{label}: what begins with '{{' is JSON, and this is none ({error}). Write it as "
            f'\'{{"uri": "s3://bucket/folder"}}\'.'
        ) from None
    for key in fields:
        check_choice(_KEYS, key, f"{label}: {key}")
    for key, value in fields.items():
        _check_value(label, key, value)
    if not fields.get("uri"):
        raise UsageError(f'{label}: where are its data? Add "uri": "s3://bucket/folder".')
    if (why := env.why_unpassable(fields["uri"])) is not None:
        raise UsageError(f"{label}: uri: {why}.")
    if "mode" in fields:
        check_choice(SCRIPT_MODES, fields["mode"], f"{label}: mode {fields['mode']}")
    if "distribution" in fields:
        spelled = fields["distribution"]
        check_choice(_DISTRIBUTIONS, spelled, f"{label}: distribution {spelled}")
        fields["distribution"] = _DISTRIBUTIONS[spelled]
    fields["groups"] = tuple(fields.get("groups", ()))
    return dict(fields)


def _check_value(label: str, key: str, value: object) -> None:
    if key == "groups":
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise UsageError(f'{label}: groups is a list of names: "groups": ["gpu"].')
    elif not isinstance(value, str):
        raise UsageError(f"{label}: {key} is a text, in double quotes.")
