"""Batches of a loader made on auxiliary hosts, over an authenticated connection, without Ray."""

from headrace.core.supported_platform import require_supported_platform

require_supported_platform()
