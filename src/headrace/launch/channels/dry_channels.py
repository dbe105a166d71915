"""The channels of a job that is only described: what there is of them, and what would move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.errors import UsageError
from headrace.core.units import format_bytes
from headrace.data.storage import safe_url
from headrace.launch.channels.channel_flags import ChannelSpec, read_channels
from headrace.launch.channels.weigh import Weight, weigh
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.tables import filled

_COPIED = ("File", "Cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryChannel:
    """A channel, and what there is of it.

    Attributes:
        spec: The channel.
        weight: How many objects, and bytes.
    """

    spec: ChannelSpec
    weight: Weight


def dry_channels(options: ContractOptions) -> list[DryChannel]:
    """Return the channels that flags name; raises UsageError and StorageError."""
    specs = read_channels(options.channels, options.input_modes)
    weights = weigh({name: spec.uri for name, spec in specs.items()})
    return [DryChannel(spec=spec, weight=weights[name]) for name, spec in specs.items()]


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
        spec, weight = channel.spec, channel.weight
        yield filled(f"  {spec.name:<12}", safe_url(spec.uri))
        objects = f"{weight.objects:,} object{'' if weight.objects == 1 else 's'}"
        size = format_bytes(weight.size_bytes)
        yield filled(" " * 14, f"{objects}, {size}; {spec.mode}: {_moved(spec, weight, groups)}")


def _moved(spec: ChannelSpec, weight: Weight, groups: Mapping[str, Sequence[str]]) -> str:
    for group in spec.groups:
        if group not in groups:
            raise UsageError(
                f"--channel {spec.name}: there is no instance group {group}: there are "
                f"{', '.join(groups)}."
            )
    if spec.is_piped:
        return "streamed as the script reads it"
    if spec.is_local:
        return "nothing to move"
    if spec.mode not in _COPIED:
        return "read as the script asks"
    hosts = sum(len(groups[name]) for name in spec.groups or groups)
    total = format_bytes(weight.size_bytes)
    if hosts == 1:
        return f"{total} to move"
    if spec.distribution != "FullyReplicated":
        return f"{total} to move, shared by {hosts} hosts"
    return f"{total} to move to each of {hosts} hosts (emulated ones share a copy)"
