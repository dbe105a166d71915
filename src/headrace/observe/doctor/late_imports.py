"""Imports of libraries after the first batch: start-up, as a run pays them once however long it is.

The first optimizer of a process imports torch's compiler, for seconds, and a script may import its
metrics or plots where it first needs them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from headrace.observe.doctor.row_activity import rows_mostly_at
from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.wall_time import WallTime

_IMPORT_SYSTEM = "<frozen importlib"


def with_imports_as_start(wall: WallTime, samples: tuple[StackSample, ...]) -> WallTime:
    """Return a run's time with rows between epochs that mostly import libraries as start-up."""
    rows = wall.between
    if not rows.count:
        return wall
    imports = rows_mostly_at(rows, samples, _imports_library)
    imported_ns = int(rows["wall_ns"][imports].sum())
    if not imported_ns:
        return wall
    return replace(
        wall,
        start_ns=wall.start_ns + imported_ns,
        between=rows.where(~imports),
        part_ns={**wall.part_ns, "between": wall.part_ns["between"] - imported_ns},
    )


def _imports_library(sample: StackSample) -> bool:
    """Return whether a sample is in an import of a library's module.

    The script's own modules may train where they are imported, and `python -m` runs a library's
    module without the import system.
    """
    return any(
        not called.is_user and called.function == "<module>"
        for caller, called in pairwise(sample.frames)
        if caller.file.startswith(_IMPORT_SYSTEM)
    )
