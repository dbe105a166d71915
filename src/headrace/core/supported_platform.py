"""The platform that Headrace runs on, 64-bit Linux, and the refusal of others.

Packages that start processes, share memory or map large files call `require_supported_platform` as
they are imported, so that one sentence comes in place of an error about a missing module.
"""

from __future__ import annotations

import sys

from headrace.core.errors import UnsupportedPlatformError

_NAMES = {"darwin": "macOS", "win32": "Windows", "cygwin": "Cygwin"}
_LARGEST_OF_32_BIT = 2**32


def require_supported_platform() -> None:
    """Raise UnsupportedPlatformError unless this is Linux, and Python a 64-bit program."""
    is_32_bit = sys.maxsize < _LARGEST_OF_32_BIT
    if sys.platform == "linux" and not is_32_bit:
        return
    name = _NAMES.get(sys.platform, "Linux" if sys.platform == "linux" else sys.platform)
    raise UnsupportedPlatformError(
        f"Headrace needs 64-bit Linux, and this is {name}{' with a 32-bit Python' * is_32_bit}: "
        "install it on a Linux host, in a container, or in WSL 2."
    )
