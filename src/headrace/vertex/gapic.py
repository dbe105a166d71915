"""`aiplatform.gapic`: the states of jobs and of the runs of experiments, and kinds of devices."""

from __future__ import annotations

from headrace.jobs.vertex_sdk.job_states import Execution, JobState, PipelineState
from headrace.jobs.vertex_sdk.worker_pools import AcceleratorType

__all__ = ["AcceleratorType", "Execution", "JobState", "PipelineState"]
