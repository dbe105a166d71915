"""What a frame shows: numbers alone, no text and no colour."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.observe.whatif.tables import Tables
from headrace.report.terminal.machine import Machine, read_machine
from headrace.report.terminal.processes import Process, read_processes
from headrace.report.terminal.steps import Steps, read_steps
from headrace.report.terminal.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How it stands with a run.

    Attributes:
        name: The run's name.
        attempt: The attempt that is shown.
        world_size: Its ranks; None where not known.
        live: Whether it is being recorded at this moment.
        recording: Whether the switch is on; True where the run is over.
        elapsed_s: From its start until now or its end; None where not known.
        exit_code: What it exited with; None while it runs, or where nothing was left to say so.
        silent_s: How old the newest record is, where that is older than it should be; else 0.
    """

    name: str
    attempt: int
    world_size: int | None = None
    live: bool = True
    recording: bool = True
    elapsed_s: float | None = None
    exit_code: int | None = None
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the doctor says.

    Attributes:
        sentence: The verdict, or why there is none.
        span_s: Of how many last seconds; None: of the whole run.
        data_wait_share: Data wait over step time in the whole run, 0 to 1; None: not known.
    """

    sentence: str
    span_s: float | None = None
    data_wait_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of a run at a moment.

    Attributes:
        status: How it stands with it.
        window: The seconds that the numbers are of.
        steps: Its steps.
        machine: Its host.
        processes: Its ranks and workers.
        told: What the doctor said last; None: nothing yet.
    """

    status: Status
    window: Window
    steps: Steps
    machine: Machine
    processes: tuple[Process, ...]
    told: Told | None = None


def read_state(tables: Tables, window: Window, status: Status) -> State:
    """Return the numbers of the last seconds.

    Args:
        tables: Records that hold at least the window, and the last rows of each table.
        window: The last seconds.
        status: How it stands with the run.
    """
    return State(
        status=status,
        window=window,
        steps=read_steps(tables, window),
        machine=read_machine(tables, window),
        processes=read_processes(tables, window),
    )
