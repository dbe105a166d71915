"""Jobs: their description, their start, their supervision and their end."""

from headrace.core.supported_platform import require_supported_platform

require_supported_platform()
