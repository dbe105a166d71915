"""The states of jobs with the names of Vertex AI's SDK (`aiplatform.gapic`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class JobState(Enum):
    """The state of a CustomJob."""

    JOB_STATE_PENDING = 2
    JOB_STATE_RUNNING = 3
    JOB_STATE_SUCCEEDED = 4
    JOB_STATE_FAILED = 5
    JOB_STATE_CANCELLED = 7


class PipelineState(Enum):
    """The state of a training job."""

    PIPELINE_STATE_PENDING = 2
    PIPELINE_STATE_RUNNING = 3
    PIPELINE_STATE_SUCCEEDED = 4
    PIPELINE_STATE_FAILED = 5
    PIPELINE_STATE_CANCELLED = 7


VertexState = TypeVar("VertexState", JobState, PipelineState)
_ENDINGS: Mapping[str, str] = {
    "": "PENDING",
    "InProgress": "RUNNING",
    "Completed": "SUCCEEDED",
    "Failed": "FAILED",
    "Stopped": "CANCELLED",
}
"""The ends of the names by `RunHandle.state`; "": the job has not started."""


def vertex_state(states: type[VertexState], run_state: str) -> VertexState:
    """Return the state in Vertex AI's words; `run_state` is "" before the job has started."""
    by_ending = {state.name.rpartition("_STATE_")[2]: state for state in states}
    return by_ending[_ENDINGS[run_state]]
