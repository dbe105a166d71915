"""`sagemaker.instance_group`: groups of hosts of one kind."""

from __future__ import annotations

from headrace.sagemaker import InstanceGroup

__all__ = ["InstanceGroup"]
