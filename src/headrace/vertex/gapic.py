"""`aiplatform.gapic`: the states of jobs."""

from __future__ import annotations

from headrace.jobs.vertex_sdk.job_states import JobState, PipelineState

__all__ = ["JobState", "PipelineState"]
