"""The channels of a job that is only described: what there is of them, and what would move."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.units import format_bytes
from headrace.data.storage import safe_url
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.tables import filled
from headrace.launch.weigh import Weight, weigh

_COPIED = ("File", "Cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryChannel:
    """A channel, and what there is of it.

    Attributes:
        name: What it is called.
        uri: Where its data are.
        mode: How they would reach the script.
        is_sharded: Each host gets a share; otherwise all of it.
        groups: The instance groups whose hosts get it; empty: all.
        content_type: Of its objects; None: not told.
        weight: How many objects, and bytes.
    """

    name: str
    uri: str
    mode: str
    is_sharded: bool
    groups: tuple[str, ...]
    content_type: str | None
    weight: Weight

    @property
    def is_local(self) -> bool:
        """Whether it lies where this host sees it: nothing is to move."""
        return "://" not in self.uri.removeprefix("file://")


def dry_channels(options: ContractOptions) -> list[DryChannel]:
    """Return the channels that flags name; raises UsageError and StorageError."""
    told = {name: _fields(name, text) for name, text in options.channels.items()}
    weights = weigh({name: fields["uri"] for name, fields in told.items()})
    modes: Mapping[str, str] = options.input_modes
    return [
        DryChannel(
            name=name,
            uri=fields["uri"],
            mode=fields.get("mode") or modes.get(name) or modes.get("") or "File",
            is_sharded=str(fields.get("distribution", "")).startswith("Sharded"),
            groups=tuple(fields.get("groups", ())),
            content_type=fields.get("content_type"),
            weight=weights[name],
        )
        for name, fields in told.items()
    ]


def lines_of(channels: Sequence[DryChannel], groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield lines that tell of channels.

    Args:
        channels: All of them.
        groups: The hosts of each instance group, by its name.
    """
    if not channels:
        yield "no channels: no data to move"
        return
    yield "channels"
    for channel in channels:
        yield filled(f"  {channel.name:<12}", safe_url(channel.uri))
        weight = channel.weight
        objects = f"{weight.objects:,} object{'' if weight.objects == 1 else 's'}"
        size = format_bytes(weight.size_bytes)
        yield filled(" " * 14, f"{objects}, {size}; {channel.mode}: {_moved(channel, groups)}")


def _moved(channel: DryChannel, groups: Mapping[str, Sequence[str]]) -> str:
    for group in channel.groups:
        if group not in groups:
            raise UsageError(
                f"--channel {channel.name}: there is no instance group {group}: there are "
                f"{', '.join(groups)}."
            )
    if channel.is_local:
        return "nothing to move"
    if channel.mode not in _COPIED:
        return "read as the script asks"
    hosts = sum(len(groups[name]) for name in channel.groups or groups)
    total = format_bytes(channel.weight.size_bytes)
    if hosts == 1:
        return f"{total} to move"
    if channel.is_sharded:
        return f"{total} to move, shared by {hosts} hosts"
    return f"{total} to move to each of {hosts} hosts (emulated ones share a copy)"


def _fields(name: str, text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {"uri": text}
    try:
        fields: dict[str, Any] = json.loads(text)
        _ = fields["uri"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--channel {name}={text}: it is no JSON object with a uri: {error}."
        ) from error
    return fields
