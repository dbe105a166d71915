"""The states of jobs with the names of Vertex AI's SDK (`aiplatform.gapic`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class JobState(Enum):
    """The state of a CustomJob; scripts that wait name those, too, which no job has here."""

    JOB_STATE_UNSPECIFIED = 0
    JOB_STATE_QUEUED = 1
    JOB_STATE_PENDING = 2
    JOB_STATE_RUNNING = 3
    JOB_STATE_SUCCEEDED = 4
    JOB_STATE_FAILED = 5
    JOB_STATE_CANCELLING = 6
    JOB_STATE_CANCELLED = 7
    JOB_STATE_PAUSED = 8
    JOB_STATE_EXPIRED = 9
    JOB_STATE_UPDATING = 10
    JOB_STATE_PARTIALLY_SUCCEEDED = 11


class PipelineState(Enum):
    """The state of a training job, of which the same is true."""

    PIPELINE_STATE_UNSPECIFIED = 0
    PIPELINE_STATE_QUEUED = 1
    PIPELINE_STATE_PENDING = 2
    PIPELINE_STATE_RUNNING = 3
    PIPELINE_STATE_SUCCEEDED = 4
    PIPELINE_STATE_FAILED = 5
    PIPELINE_STATE_CANCELLING = 6
    PIPELINE_STATE_CANCELLED = 7
    PIPELINE_STATE_PAUSED = 8


class ExecutionState(Enum):
    """The state of a run of an experiment, which ends in one of the last ones."""

    STATE_UNSPECIFIED = 0
    NEW = 1
    RUNNING = 2
    COMPLETE = 3
    FAILED = 4
    CACHED = 5
    CANCELLED = 6


class Execution:
    """What the SDK calls the record of a run."""

    State = ExecutionState


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
