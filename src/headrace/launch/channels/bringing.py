"""Brings the channels of a job to this host: as they lie there, as mounts, or as copies."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.contracts.training_job import Channel, TrainingJob
from headrace.core.errors import LaunchError, StorageError, UsageError
from headrace.data.copies.folders import usual_folder
from headrace.data.copies.request import CopyRequest, Wanted
from headrace.data.storage import open_store
from headrace.launch.channels.channel_flags import (
    ChannelOptions,
    ChannelSpec,
    limit_of,
    read_channels,
)
from headrace.launch.channels.copies import Copies
from headrace.launch.channels.holding import Held
from headrace.launch.channels.mounted import Mounts
from headrace.launch.channels.piped import Piped
from headrace.launch.channels.readable import first_unreadable
from headrace.launch.channels.watched import Watched
from headrace.launch.channels.weigh import weigh

_STOPPED = 128 + signal.SIGTERM


def told_channels(options: ChannelOptions) -> tuple[Channel, ...]:
    """Return the channels as scripts are told of them; raises UsageError."""
    specs = read_channels(options.channels, options.input_modes)
    return tuple(specs[name].told() for name in sorted(specs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The channels of a host.

    Attributes:
        places: Where each one lies: a path, or, of one in pipes, where it is read from.
        held: What holds those that came from elsewhere.
        piped: Those in pipes; None: there are none.
    """

    places: Mapping[str, str]
    held: tuple[Held, ...]
    piped: Piped | None


def look_for_channels(options: ChannelOptions, *, is_same_machine: bool) -> None:
    """Look once for channels that each of several hosts is going to look for; raises UsageError.

    Args:
        options: Where the data are.
        is_same_machine: Those are emulated on this one.
    """
    if not is_same_machine:  # they may have other files and other credentials
        return
    specs = read_channels(options.channels, options.input_modes).values()
    for spec in specs:
        if spec.is_local:
            _local(spec)
    with suppress(StorageError, LaunchError):  # each of them tells by itself
        weigh({spec.name: spec.uri for spec in specs if not spec.is_local}, first_alone=True)


def bring_channels(
    options: ChannelOptions, job: TrainingJob, host: str, folder: Path, pipes: Path
) -> Brought:
    """Bring the channels of a host to it.

    Args:
        options: Where the data are.
        job: Which hosts get which channels.
        host: This one.
        folder: Where what belongs to this host lies.
        pipes: Where pipes are to lie, once there is such a folder.

    Raises:
        UsageError: A channel has nothing, or nothing that may be read.
        StorageError: One cannot be copied.
        LaunchError: A share of one cannot be made.
    """
    bringing = _Bringing(options, folder, pipes)
    try:
        for channel in job.channels_of(host):
            bringing.take(channel.name, *_share(job, channel, host))
        return bringing.done()
    except BaseException:
        bringing.give_up()
        raise


class _Bringing:
    """The channels of a host on their way to it."""

    def __init__(self, options: ChannelOptions, folder: Path, pipes: Path) -> None:
        self._options = options
        self._specs = read_channels(options.channels, options.input_modes)
        self._folder = folder
        self._pipes = pipes
        self._limit = limit_of(options.cache_limit) if options.cache_limit else None
        self._places: dict[str, str] = {}
        self._mounts = Mounts(folder / "mounts", self._limit)
        self._held: list[Held] = [self._mounts]
        self._mounted: list[Wanted] = []
        self._copied: list[Wanted] = []
        self._streamed: list[Wanted] = []

    def take(self, name: str, number: int, of: int) -> None:
        """Take a channel, of whose `of` shares this host gets one; what is copied comes later."""
        spec = self._specs[name]
        path = _local(spec) if spec.is_local else None
        if spec.is_piped:
            url = self._places[name] = spec.uri if path is None else str(path)
            self._streamed.append(_wanted(spec, url, self._pipes, number, of))
            return
        if path is None and spec.is_mounted:
            path = self._mounts.show(spec)
            if path is not None:
                self._mounted.append(_wanted(spec, spec.uri, path, number, of))
        if path is None:
            cache = _cache_folder(self._options, spec)
            self._copied.append(_wanted(spec, spec.uri, cache, number, of))
            return
        share = self._folder / "shares" / name
        path = _linked_share(spec, path, share, number, of) if of > 1 else path
        self._places[name] = str(path)

    def done(self) -> Brought:
        """Copy what is copied, and return all channels."""
        piped = None
        if self._mounted:
            self._held.append(Watched(CopyRequest(channels=tuple(self._mounted))))
        if self._streamed:
            piped = Piped(CopyRequest(channels=tuple(self._streamed)))
            self._held.append(piped)
            piped.look()
        if self._copied:
            request = CopyRequest(channels=tuple(self._copied), limit_bytes=self._limit)
            copies = Copies(request)
            self._held.append(copies)
            self._places |= {name: str(path) for name, path in copies.make().items()}
        return Brought(places=self._places, held=tuple(self._held), piped=piped)

    def give_up(self) -> None:
        """Let go of what has come."""
        for each in self._held:
            each.end(_STOPPED)


def _share(job: TrainingJob, channel: Channel, host: str) -> tuple[int, int]:
    """Return which share of a channel a host gets, and how many there are."""
    if channel.distribution == "FullyReplicated":
        return 0, 1
    hosts = [each for each in job.hosts if channel.is_for(job.group_of(each).name)]
    return hosts.index(host), len(hosts)


def _wanted(spec: ChannelSpec, url: str, folder: Path, number: int, of: int) -> Wanted:
    return Wanted(name=spec.name, url=url, folder=str(folder), number=number, of=of)


def _cache_folder(options: ChannelOptions, spec: ChannelSpec) -> Path:
    if spec.mode == "Cache" and options.cache_dir is not None:
        return Path(options.cache_dir).expanduser().absolute()
    return usual_folder()


def _local(spec: ChannelSpec) -> Path:
    path = spec.path
    said = f"--channel {spec.name}={spec.uri}"
    if not path.exists():
        raise UsageError(f"{said}: there is no {path}. Name a folder, a file, or a URL.")
    may_be = os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
    unreadable = path if not may_be else first_unreadable(path) if path.is_dir() else None
    if unreadable is not None:
        raise UsageError(f"{said}: {unreadable} may not be read. Run `chmod -R +rX {path}`.")
    if path.is_dir() and not any(path.iterdir()):
        raise UsageError(f"{said}: the folder {path} is empty. Name one that holds data.")
    return path


def _linked_share(spec: ChannelSpec, path: Path, share: Path, number: int, of: int) -> Path:
    """Make a folder of links to every file whose number in the order of their paths is ours."""
    files = [info.path for info in open_store(str(path)).list()] if path.is_dir() else [path.name]
    ours = files[number::of]
    if not ours:
        raise UsageError(
            f"--channel {spec.name}={spec.uri}: {len(files)} files cannot be shared by {of} hosts, "
            "each of which wants one. Use fewer hosts, or FullyReplicated."
        )
    root = path if path.is_dir() else path.parent
    try:
        shutil.rmtree(share, ignore_errors=True)  # of an earlier attempt
        for file in ours:
            link = share / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(root / file)
    except OSError as error:
        raise LaunchError(
            f"--channel {spec.name}: links to this host's share cannot be made in {share}: "
            f"{error.strerror}. Make room, or take another folder with --run-dir."
        ) from error
    return share
