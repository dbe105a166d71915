"""The resolution of a job's channels on this host: in place, as mounts, pipes, copies or shares."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, LaunchError, StorageError, UsageError
from headrace.core.process.supervision import start_without_signals
from headrace.data.channels.copy.cache_dir import default_cache_dir
from headrace.data.channels.mount.folder_mount import Mount, mount_url
from headrace.data.channels.mount.mount_program import NoMountError
from headrace.data.channels.sidecar_client import (
    SERVE,
    ActiveChannels,
    ChannelRequest,
    ChannelSidecar,
    ChannelsRequest,
)
from headrace.data.channels.sizes import channel_sizes
from headrace.data.channels.spec import (
    CACHE_DIR_FLAG,
    ChannelOptions,
    ChannelSpec,
    parse_cache_limit,
    read_channels,
)
from headrace.data.storage import open_store, safe_url
from headrace.data.storage.urls import cache_folder
from headrace.platforms.training_job import Channel, TrainingJob


class _WatchedChannels(ActiveChannels):
    """Channels that a sidecar has listed, and lists again at the end."""

    _sidecar_module: str

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar(self._sidecar_module, request)

    def end(self, exit_code: int) -> None:
        """End it; unless the job was stopped, report what has changed meanwhile."""
        self._sidecar.end_with_change_check(exit_code)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedChannel:
    """What a mount must know of its channel's objects."""

    identity: str | None  # of their state; None: they cannot be listed
    is_folder: bool  # they are all that lies below the URL, as a mount shows it
    outside: tuple[str, ...] = ()  # one that does not lie below it, though its key begins so

    def check_is_folder(self) -> None:
        """Raise NoMountError where a mount would not show what the channel has."""
        if self.outside:
            raise NoMountError(f"{self.outside[0]} is not in a folder, though its key begins so")
        if not self.is_folder:
            raise NoMountError("it is one object, or several whose keys begin so, and no folder")


class ChannelChangeWatch(_WatchedChannels):
    """The watch for changes of mounted channels, which are listed before they are mounted."""

    _sidecar_module = "listing"

    def listed(self) -> dict[str, ListedChannel]:
        """Wait for the first listing and return it by channel; see `ChannelSidecar.answer`."""
        return {
            name: ListedChannel(**{**each, "outside": tuple(each["outside"])})
            for name, each in self._sidecar.answer()["listed"].items()
        }

    def watch(self, names: Sequence[str]) -> None:
        """Watch these channels: others were copied, and are watched with the copies."""
        self._sidecar.send({"watched": list(names)})


class ChannelCopies(_WatchedChannels):
    """Channels that are copied to this host, and watched for changes."""

    _sidecar_module = "copy.trees"

    def make(self) -> dict[str, str]:
        """Wait for the copies and return their folders by name; see `ChannelSidecar.answer`.

        There is no deadline for the whole copy; each request has one.
        """
        return dict(self._sidecar.answer()["folders"])


_SHARE_OF_DISK = 0.5  # of the free disk, for the caches of all that was read


class ChannelMounts(ActiveChannels):
    """The mounts of one host, `most` of them at most.

    Each has a cache of `limit_bytes`, None: the caches together of half the free disk.
    """

    def __init__(self, folder: Path, limit_bytes: int | None, most: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._most = max(most, 1)
        self._mounts: list[Mount] = []

    def show(self, spec: ChannelSpec, listed: ListedChannel) -> Path | None:
        """Mount a channel and return its folder; None, with a report, where that is impossible.

        UsageError: there is nothing below its URL.
        """
        try:
            listed.check_is_folder()
            mount = self._show(spec.uri, spec.name, listed.identity)
        except NoMountError as error:
            print_status(
                f"channel {spec.name} is copied (mode File), as it cannot be mounted here: {error}"
            )
            return None
        try:
            is_empty = not any(mount.folder.iterdir())
        except OSError as error:
            raise UsageError(_mount_error(spec, f"cannot be read: {error.strerror}")) from error
        if is_empty:
            self.end(0)
            raise UsageError(_mount_error(spec, "has nothing below it"))
        return mount.folder

    def mount_bucket(self, bucket: str) -> Path:
        """Mount a whole bucket of Cloud Storage and return its folder; raises NoMountError."""
        # It is too large to be listed first, so its cache is not kept without versions.
        return self._show(f"gs://{bucket}", bucket, None, reads_ahead=False).folder

    def end(self, exit_code: int) -> None:
        """Unmount all of them, even if still in use."""
        del exit_code
        for mount in self._mounts:
            mount.close()
        self._mounts.clear()

    def _show(
        self, url: str, name: str, identity: str | None, *, reads_ahead: bool = True
    ) -> Mount:
        caches = default_cache_dir() / "mounts"
        try:
            caches.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(caches).free
            mount = mount_url(
                url, self._folder / name, caches, identity=identity,
                cache_bytes=self._limit_bytes or int(free * _SHARE_OF_DISK / self._most),
                reads_ahead=reads_ahead,
            )  # fmt: skip
        except OSError as error:
            raise NoMountError(
                f"{error.filename or caches}: {error.strerror or error} (HEADRACE_CACHE_DIR names "
                "another folder for what is cached)"
            ) from error
        self._mounts.append(mount)
        return mount


def _mount_error(spec: ChannelSpec, why: str) -> str:
    return (
        f"--channel {spec.name}={safe_url(spec.uri)}: it {why}. Name a URL that holds data, and "
        "have its credentials set."
    )


_PIPES_END_S = 5.0
_WRITER_KILLED = (
    "The process that writes channels to their pipes was killed, often for want of memory; what "
    "the script read from them may have ended early."
)


class ChannelPipes(ActiveChannels):
    """Channels that are streamed through pipes on this host.

    Where one fails while the script runs, this process gets SIGTERM and forwards it: the script may
    be waiting for a pipe that nobody writes to any more.
    """

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar("pipe.epoch_pipes", request)
        self._failure: str | None = None
        self._is_over = threading.Event()

    def look(self) -> None:
        """List and check the channels; see `ChannelSidecar.answer`."""
        self._sidecar.answer()

    def serve(self) -> None:
        """Have the pipes made, once their folder exists; raises LaunchError."""
        self._sidecar.send(SERVE)
        self._sidecar.answer()
        start_without_signals(
            threading.Thread(target=self._watch, name="headrace-pipes", daemon=True)
        )

    def failure(self) -> str | None:
        """Return why a pipe could not be written to its end, or None."""
        return self._failure

    def end(self, exit_code: int) -> None:
        """End the writer; readers see the end of the pipe."""
        del exit_code
        self._is_over.set()
        self._sidecar.end(patience_s=_PIPES_END_S)

    def _watch(self) -> None:
        failure = _WRITER_KILLED
        try:
            self._sidecar.receive()
        except HeadraceError as error:
            failure = str(error)
        if not self._is_over.is_set():
            self._failure = failure
            os.kill(os.getpid(), signal.SIGTERM)


MAX_ENTRIES = 10_000
"""Most entries of a folder that are checked: on a network disk each costs a request."""


def first_unreadable(folder: Path, most: int = MAX_ENTRIES) -> Path | None:
    """Return the first of a folder's files and folders that is unreadable for this user, or None.

    At most `most` entries are checked, at any depth. Links are followed, but folders behind links
    are not searched. A dangling link is accepted: the data may not need it.
    """
    unreadable = (
        Path(entry.path) for entry in islice(_entries(folder), most) if not _is_readable(entry)
    )
    return next(unreadable, None)


def _is_readable(entry: os.DirEntry[str]) -> bool:
    try:
        is_folder = entry.is_dir()
        entry.stat()
    except PermissionError:  # a link into a folder that this user may not enter
        return False
    except OSError:  # a link that leads nowhere, or to itself
        return True
    return os.access(entry.path, os.R_OK | (os.X_OK if is_folder else 0))


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield a folder's own entries before those of its subfolders."""
    left = [str(folder)]
    while left:
        try:
            with os.scandir(left.pop()) as found:
                for entry in found:
                    yield entry
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except FileNotFoundError:  # removed meanwhile
            continue


_STOPPED_CODE = 128 + signal.SIGTERM


def script_channels(options: ChannelOptions) -> tuple[Channel, ...]:
    """Return the channels as scripts see them; raises UsageError."""
    specs = read_channels(options.channels, options.input_modes)
    return tuple(specs[name].script_channel() for name in sorted(specs))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedChannels:
    """The channels of a host."""

    places: Mapping[str, str]  # their paths; for a channel in pipes, the URL that it is read from
    held: tuple[ActiveChannels, ...]  # what stays active until the job ends
    piped: ChannelPipes | None


def preflight_channels(options: ChannelOptions, *, is_same_machine: bool) -> None:
    """Check channels once for all hosts, where these are emulated here; raises UsageError."""
    if not is_same_machine:  # they may have other files and other credentials
        return
    specs = read_channels(options.channels, options.input_modes).values()
    for spec in specs:
        if spec.is_local:
            _local_path(spec)
    with suppress(StorageError, LaunchError):  # each host reports these itself
        channel_sizes(
            {spec.name: spec.uri for spec in specs if not spec.is_local}, first_alone=True
        )


def resolve_channels(
    options: ChannelOptions, job: TrainingJob, host: str, folder: Path, pipes: Path
) -> ResolvedChannels:
    """Make the channels of a host available on it.

    The job says which hosts get which channels. `folder` holds this host's own files, `pipes` is
    the future folder of pipes. UsageError: a channel is empty or unreadable. StorageError: it
    cannot be copied. LaunchError: a share of it cannot be made.
    """
    resolver = _Resolver(options, folder, pipes)
    try:
        for channel in job.channels_of(host):
            resolver.take(channel.name, *_share(job, channel, host))
        return resolver.done()
    except BaseException:
        resolver.give_up()
        raise


class _Resolver:
    """Resolves channels one by one; copies are made at the end."""

    def __init__(self, options: ChannelOptions, folder: Path, pipes: Path) -> None:
        self._options = options
        self._specs = read_channels(options.channels, options.input_modes)
        self._folder = folder
        self._pipes = pipes
        self._limit = parse_cache_limit(options.cache_limit) if options.cache_limit else None
        self._places: dict[str, str] = {}
        mounted = [spec for spec in self._specs.values() if spec.is_mounted and not spec.is_local]
        self._mounts = ChannelMounts(folder / "mounts", self._limit, len(mounted))
        self._active: list[ActiveChannels] = [self._mounts]
        self._to_mount: list[tuple[ChannelSpec, int, int]] = []
        self._copied: list[ChannelRequest] = []
        self._streamed: list[ChannelRequest] = []

    def take(self, name: str, number: int, of: int) -> None:
        """Resolve a channel of which this host gets share `number` of `of`; copies come later."""
        spec = self._specs[name]
        path = _local_path(spec) if spec.is_local else None
        if spec.is_piped:
            url = self._places[name] = spec.uri if path is None else str(path)
            self._streamed.append(_channel_request(spec, url, self._pipes, number, of))
            return
        if path is not None:
            self._place(spec, path, number, of)
        elif spec.is_mounted:
            self._to_mount.append((spec, number, of))
        else:
            self._copy(spec, number, of)

    def _place(self, spec: ChannelSpec, path: Path, number: int, of: int) -> None:
        share = self._folder / "shares" / spec.name
        path = _linked_share(spec, path, share, number, of) if of > 1 else path
        self._places[spec.name] = str(path)

    def _copy(self, spec: ChannelSpec, number: int, of: int) -> None:
        if spec.mode == "Cache" and self._options.cache_dir is not None:
            cache = cache_folder(self._options.cache_dir, CACHE_DIR_FLAG)
        else:
            cache = default_cache_dir()
        self._copied.append(_channel_request(spec, spec.uri, cache, number, of))

    def _mount(self) -> None:
        """Mount channels; those that cannot be mounted are copied."""
        requests = [
            _channel_request(spec, spec.uri, self._folder, 0, 1) for spec, _, _ in self._to_mount
        ]
        watch = ChannelChangeWatch(ChannelsRequest(channels=tuple(requests)))
        self._active.append(watch)
        listed, mounted = watch.listed(), []
        for spec, number, of in self._to_mount:
            path = self._mounts.show(spec, listed[spec.name])
            if path is None:
                self._copy(spec, number, of)
            else:
                self._place(spec, path, number, of)
                mounted.append(spec.name)
        watch.watch(mounted)

    def done(self) -> ResolvedChannels:
        piped = None
        if self._to_mount:
            self._mount()
        if self._streamed:
            piped = ChannelPipes(ChannelsRequest(channels=tuple(self._streamed)))
            self._active.append(piped)
            piped.look()
        if self._copied:
            request = ChannelsRequest(channels=tuple(self._copied), limit_bytes=self._limit)
            copies = ChannelCopies(request)
            self._active.append(copies)
            self._places |= copies.make()
        return ResolvedChannels(places=self._places, held=tuple(self._active), piped=piped)

    def give_up(self) -> None:
        for each in self._active:
            each.end(_STOPPED_CODE)


def _share(job: TrainingJob, channel: Channel, host: str) -> tuple[int, int]:
    """Return which share of a channel a host gets, and the number of shares."""
    if channel.distribution == "FullyReplicated":
        return 0, 1
    hosts = [each for each in job.hosts if channel.is_for(job.group_of(each).name)]
    return hosts.index(host), len(hosts)


def _channel_request(
    spec: ChannelSpec, url: str, folder: Path, number: int, of: int
) -> ChannelRequest:
    return ChannelRequest(name=spec.name, url=url, folder=str(folder), number=number, of=of)


def _local_path(spec: ChannelSpec) -> Path:
    path = spec.path
    label = f"--channel {spec.name}={spec.uri}"
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        is_readable = os.access(path, os.R_OK | (os.X_OK if is_folder else 0))
        unreadable = path if not is_readable else first_unreadable(path) if is_folder else None
        is_empty = is_folder and unreadable is None and not any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a zero byte
        raise UsageError(f"{label}: there is no {path}. Name a folder, a file, or a URL.") from None
    except OSError as error:  # in a closed folder, or in a mount whose program has ended
        raise UsageError(
            f"{label}: {error.filename or path} cannot be read: {error.strerror}. See that this "
            "user may enter all folders above it, and that what is mounted there answers."
        ) from None
    if unreadable is not None:
        raise UsageError(f"{label}: {unreadable} may not be read. Run `chmod -R +rX {path}`.")
    if is_empty:
        raise UsageError(f"{label}: the folder {path} is empty. Name one that holds data.")
    return path


def _linked_share(spec: ChannelSpec, path: Path, share: Path, number: int, of: int) -> Path:
    """Make a folder of links to this host's share of the files, in the order of their paths."""
    files = [info.path for info in open_store(str(path)).list()] if path.is_dir() else [path.name]
    ours = files[number::of]
    if not ours:
        raise UsageError(
            f"--channel {spec.name}={spec.uri}: {len(files)} files cannot be shared by {of} hosts, "
            "each of which wants one. Use fewer hosts, or FullyReplicated."
        )
    root = path if path.is_dir() else path.parent
    try:
        shutil.rmtree(share, ignore_errors=True)  # left by an earlier attempt
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
