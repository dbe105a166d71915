"""How samples reach the model: storage, shards, transforms, loader, channels."""

from headrace.core.supported_platform import require_supported_platform

require_supported_platform()
