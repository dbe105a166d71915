"""`aiplatform.gapic`: the states of jobs and of the runs of experiments."""

from __future__ import annotations

from headrace.jobs.vertex_sdk.job_states import Execution, JobState, PipelineState

__all__ = ["Execution", "JobState", "PipelineState"]
