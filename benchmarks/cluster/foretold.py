"""What a recorded run foretells of auxiliary hosts beside it."""

from __future__ import annotations

from pathlib import Path

from headrace.observe.whatif.measured import measure
from headrace.observe.whatif.prediction import Prediction, Simulator, with_auxiliary
from headrace.observe.whatif.tables import ReadOnce, columns
from headrace.observe.whatif.within import Within
from headrace.records.reading import open_records


def foretold_from(run_folder: Path, cores: int) -> Prediction:
    """Return what so many cores for each rank are foretold to give, without the first epoch."""
    records = open_records(run_folder)
    fetches = columns(records, "fetches")
    begin_ns = int(fetches["start_ns"][fetches["epoch"] == 1].min())
    measured = measure(ReadOnce(Within(records, begin_ns=begin_ns)))
    assert measured is not None  # it has enough steps
    return with_auxiliary(Simulator(measured), cores)
