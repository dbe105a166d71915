"""Object storage as a folder, by a well-kept program of others that is found on this host."""

from headrace.data.mounts.mount import Mount, mount_url
from headrace.data.mounts.programs import NoMountError

__all__ = ["Mount", "NoMountError", "mount_url"]
