"""Channels by input mode on this host: copies, mounts, pipes, and the watch for changes."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.data.channels.copy.cache_dir import default_cache_dir
from headrace.data.channels.messages import SERVE, ChannelsRequest
from headrace.data.channels.mount import Mount, NoMountError, mount_url
from headrace.data.channels.sidecar_client import ChannelSidecar, add_sidecars, remove_sidecars
from headrace.data.channels.spec import ChannelSpec
from headrace.data.storage.urls import safe_url


class ChannelCopies:
    """Such channels.

    Args:
        request: Which ones; nothing is copied before `make`.
    """

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar("headrace.data.channels.copy.process", request)

    def make(self) -> Mapping[str, Path]:
        """Copy the channels and return where each one lies; see `ChannelSidecar.start_and_wait`.

        It takes as long as that does; each request has a deadline.
        """
        answer = self._sidecar.start_and_wait()
        return {name: Path(folder) for name, folder in answer.folders.items()}

    def failure(self) -> str | None:
        """Return nothing: what was copied is there."""
        return None

    def end(self, exit_code: int) -> None:
        """Let the channels go; where the job was not stopped, tell what has changed meanwhile."""
        self._sidecar.end_with_change_check(exit_code)


class ChannelChangeWatch:
    """Such channels; nobody waits for the first look.

    Args:
        request: Which ones.
    """

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar("headrace.data.channels.change_watch", request)
        self._sidecar.start()

    def failure(self) -> str | None:
        """Return nothing: a change is told, and the script has what it has."""
        return None

    def end(self, exit_code: int) -> None:
        """Where the job was not stopped, tell what has changed meanwhile."""
        self._sidecar.end_with_change_check(exit_code)


_SHARE_OF_DISK = 0.5  # of what is free, for what was read


class ChannelMounts:
    """The mounts of one host.

    Args:
        folder: Where they lie; made.
        limit_bytes: How much of what was read each of them keeps; None: half of the free disk.
    """

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._mounts: list[Mount] = []

    def show(self, spec: ChannelSpec) -> Path | None:
        """Show a channel as a folder and return that; None: it cannot be here, which is told.

        Raises:
            UsageError: There is nothing below its URL.
        """
        try:
            mount = self._show(spec.uri, spec.name)
        except NoMountError as error:
            print_status(
                f"headrace: channel {spec.name} is copied (mode File), as it cannot be mounted "
                f"here: {error}\n"
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
        """Show a whole bucket of Cloud Storage as a folder and return that; raises NoMountError."""
        return self._show(f"gs://{bucket}", bucket, reads_ahead=False).folder

    def failure(self) -> str | None:
        """Return nothing: a read that fails is an error in the script itself."""
        return None

    def end(self, exit_code: int) -> None:
        """Take all of them away, whoever still uses them."""
        del exit_code
        for mount in self._mounts:
            mount.close()
            remove_sidecars(*mount.pids)
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
        add_sidecars(*mount.pids)
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


class ChannelPipes:
    """Such channels of one host.

    Where one fails while the script runs, this process gets SIGTERM, and passes it on: the script
    may be waiting for a pipe that nobody writes to any more.

    Args:
        request: Which ones, and in which folder their pipes are to lie.
    """

    def __init__(self, request: ChannelsRequest) -> None:
        self._sidecar = ChannelSidecar("headrace.data.channels.pipe.process", request)
        self._failure: str | None = None
        self._is_over = threading.Event()

    def look(self) -> None:
        """Look what there is, and whether it may be read; see `ChannelSidecar.start_and_wait`."""
        self._sidecar.start_and_wait()

    def serve(self) -> None:
        """Have the pipes be made, as their folder is there by now; raises LaunchError."""
        self._sidecar.send(SERVE)
        self._sidecar.answer()
        threading.Thread(target=self._watch, name="headrace-pipes", daemon=True).start()

    def failure(self) -> str | None:
        """Return why a pipe could not be written to its end; None: none was so."""
        return self._failure

    def end(self, exit_code: int) -> None:
        """Take the writer away; who still reads sees the end of the pipe."""
        del exit_code
        self._is_over.set()
        self._sidecar.end(_PIPES_END_S)

    def _watch(self) -> None:
        # Signals are for the thread that waits for the script: see `signals_blocked`.
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        news = self._sidecar.news()
        if not self._is_over.is_set():
            self._failure = _WRITER_KILLED if news is None else news.message
            os.kill(os.getpid(), signal.SIGTERM)
