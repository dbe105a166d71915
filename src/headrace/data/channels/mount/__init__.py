"""Mounts of object storage as folders, by a FUSE program that is found on this host."""

from __future__ import annotations

from headrace.data.channels.mount.folder_mount import Mount, mount_url
from headrace.data.channels.mount.mount_program import NoMountError

__all__ = ["Mount", "NoMountError", "mount_url"]
