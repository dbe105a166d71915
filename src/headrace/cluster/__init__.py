"""The hosts of a job on a Ray cluster, by instance group, and the agent that runs on each."""

from headrace.core.supported_platform import require_supported_platform

require_supported_platform()
