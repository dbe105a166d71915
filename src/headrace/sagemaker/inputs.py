"""`sagemaker.inputs`: channels of a job."""

from __future__ import annotations

from headrace.sagemaker import FileSystemInput, ShuffleConfig, TrainingInput

__all__ = ["FileSystemInput", "ShuffleConfig", "TrainingInput"]
