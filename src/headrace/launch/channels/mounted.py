"""Channels that are shown as folders while a job runs: modes FastFile and Mount."""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.data.copies.folders import usual_folder
from headrace.data.mounts import Mount, NoMountError, mount_url
from headrace.data.storage.urls import safe_url
from headrace.launch.channels.channel_flags import ChannelSpec
from headrace.launch.channels.holding import holds, holds_no_more
from headrace.launch.told import tell

_SHARE_OF_DISK = 0.5  # of what is free, for what was read


class Mounts:
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
            tell(
                f"headrace: channel {spec.name} is copied (mode File), as it cannot be mounted "
                f"here: {error}\n"
            )
            return None
        try:
            is_empty = not any(mount.folder.iterdir())
        except OSError as error:
            raise UsageError(_cannot(spec, f"cannot be read: {error.strerror}")) from error
        if is_empty:
            self.end(0)
            raise UsageError(_cannot(spec, "has nothing below it"))
        return mount.folder

    def show_bucket(self, bucket: str) -> Path:
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
            holds_no_more(*mount.pids)
        self._mounts.clear()

    def _show(self, url: str, name: str, *, reads_ahead: bool = True) -> Mount:
        caches = usual_folder() / "mounts"
        caches.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(caches).free
        mount = mount_url(
            url, self._folder / name, caches,
            cache_bytes=self._limit_bytes or int(free * _SHARE_OF_DISK), reads_ahead=reads_ahead,
        )  # fmt: skip
        self._mounts.append(mount)
        holds(*mount.pids)
        return mount


def _cannot(spec: ChannelSpec, why: str) -> str:
    return (
        f"--channel {spec.name}={safe_url(spec.uri)}: it {why}. Name a URL that holds data, and "
        "have its credentials set."
    )
