"""What the records lack, so that nobody takes them for all there was."""

from __future__ import annotations

from headrace.observe.whatif.tables import Columns, length


def gaps(events: Columns) -> tuple[str, ...]:
    """Return a sentence for each kind of thing that was not recorded, or went wrong in recording.

    Args:
        events: The table.
    """
    if length(events) == 0:
        return ()
    told: dict[str, list[tuple[str, float]]] = {kind: [] for kind in _SENTENCES}
    for kind, text, value in zip(events["kind"], events["text"], events["value"], strict=True):
        if kind in told and (kind, text) != ("switched", "on"):
            told[kind].append((str(text), float(value)))
    return tuple(_SENTENCES[kind](rows) for kind, rows in told.items() if rows)


def _dropped(rows: list[tuple[str, float]]) -> str:
    lost = sum(count for _, count in rows)
    return f"{lost:,.0f} records were lost: they came faster than they could be collected."


def _faults(rows: list[tuple[str, float]]) -> str:
    times = "once" if len(rows) == 1 else f"{len(rows)} times"
    return f"Recording failed {times}, and left that out; first: {rows[0][0]}."


def _stopped(rows: list[tuple[str, float]]) -> str:
    who = "A process" if len(rows) == 1 else f"{len(rows)} processes"
    return f"{who} recorded no more after a hundred faults of the probe."


def _device_steps(rows: list[tuple[str, float]]) -> str:
    lost = sum(count for _, count in rows)
    return f"{lost:,.0f} steps have no row by the accelerator's clock: the others stand for them."


def _switched(rows: list[tuple[str, float]]) -> str:
    times = "once" if len(rows) == 1 else f"{len(rows)} times"
    return f"Recording was switched off {times}: what ran then is not in the figures."


_SENTENCES = {
    "dropped-records": _dropped,
    "probe-fault": _faults,
    "recording-stopped": _stopped,
    "device-steps-lost": _device_steps,
    "switched": _switched,
}
"""By the kind of the event; `switched` says "on" or "off"."""
