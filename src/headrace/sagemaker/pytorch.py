"""`sagemaker.pytorch`: the estimator of PyTorch jobs."""

from __future__ import annotations

from headrace.sagemaker import PyTorch

__all__ = ["PyTorch"]
