"""Channels by input mode on this host: copies, mounts, pipes, and the watch for changes."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError, UsageError
from headrace.data.channels.copy.cache_dir import default_cache_dir
from headrace.data.channels.mount import Mount, NoMountError, mount_url
from headrace.data.channels.sidecar_client import (
    SERVE,
    ActiveChannels,
    ChannelSidecar,
    ChannelsRequest,
)
from headrace.data.channels.spec import ChannelSpec
from headrace.data.storage.urls import safe_url


class ChannelCopies(ActiveChannels):
    """Channels that are copied to this host."""

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar("copy.process", request)

    def make(self) -> dict[str, str]:
        """Wait for the copies and return their folders by name; see `ChannelSidecar.answer`.

        There is no deadline for the whole copy; each request has one.
        """
        return dict(self._sidecar.answer()["folders"])

    def end(self, exit_code: int) -> None:
        """Release the copies; unless the job was stopped, report what has changed meanwhile."""
        self._sidecar.end_with_change_check(exit_code)


class ChannelChangeWatch(ActiveChannels):
    """The watch for changes of mounted channels; nobody waits for its first listing."""

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar("listing", request)

    def end(self, exit_code: int) -> None:
        """Unless the job was stopped, report what has changed meanwhile."""
        self._sidecar.end_with_change_check(exit_code)


_SHARE_OF_DISK = 0.5  # of the free disk, for the cache of all that was read


class ChannelMounts(ActiveChannels):
    """The mounts of one host; each has a cache of `limit_bytes`, None: of half the free disk."""

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._mounts: list[Mount] = []

    def show(self, spec: ChannelSpec) -> Path | None:
        """Mount a channel and return its folder; None where that is impossible, which is reported.

        Raises UsageError (there is nothing below its URL).
        """
        try:
            mount = self._show(spec.uri, spec.name)
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
        return self._show(f"gs://{bucket}", bucket, reads_ahead=False).folder

    def end(self, exit_code: int) -> None:
        """Unmount all of them, even if still in use."""
        del exit_code
        for mount in self._mounts:
            mount.close()
        self._mounts.clear()

    def _show(self, url: str, name: str, *, reads_ahead: bool = True) -> Mount:
        caches = default_cache_dir() / "mounts"
        caches.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(caches).free
        mount = mount_url(
            url, self._folder / name, caches,
            cache_bytes=self._limit_bytes or int(free * _SHARE_OF_DISK), reads_ahead=reads_ahead,
        )  # fmt: skip
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
        self._sidecar = ChannelSidecar("pipe.process", request)
        self._failure: str | None = None
        self._is_over = threading.Event()

    def look(self) -> None:
        """List and check the channels; see `ChannelSidecar.answer`."""
        self._sidecar.answer()

    def serve(self) -> None:
        """Have the pipes made, once their folder exists; raises LaunchError."""
        self._sidecar.send(SERVE)
        self._sidecar.answer()
        threading.Thread(target=self._watch, name="headrace-pipes", daemon=True).start()

    def failure(self) -> str | None:
        """Return why a pipe could not be written to its end, or None."""
        return self._failure

    def end(self, exit_code: int) -> None:
        """End the writer; readers see the end of the pipe."""
        del exit_code
        self._is_over.set()
        self._sidecar.end(patience_s=_PIPES_END_S)

    def _watch(self) -> None:
        # Signals must reach the thread that waits for the script: see `signals_blocked`.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        failure = _WRITER_KILLED
        try:
            self._sidecar.receive()
        except HeadraceError as error:
            failure = str(error)
        if not self._is_over.is_set():
            self._failure = failure
            os.kill(os.getpid(), signal.SIGTERM)
