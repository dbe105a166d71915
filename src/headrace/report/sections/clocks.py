"""The phases of a step by both clocks: where the script stood, and what the accelerator did."""

from __future__ import annotations

from headrace.observe.whatif.device import DeviceSteps
from headrace.observe.whatif.steps import TrainSteps
from headrace.records.schema import PHASES
from headrace.report.markup import Html, element, joined, table
from headrace.report.section import explained
from headrace.report.telling import PHASE_MEANINGS, milliseconds, phase_name, share

_HEAD = ("Phase", "", "Script, a step", "of its time", "Accelerator, a step", "of its time")


def both_clocks(steps: TrainSteps, device: DeviceSteps) -> Html:
    """Return the table of phases by both clocks, and for how long the accelerator had no data.

    Args:
        steps: The training steps that count.
        device: The same by the accelerator's clock.
    """
    rows = [
        (
            element("b", phase_name(phase)),
            PHASE_MEANINGS[phase],
            milliseconds(steps.phase_ns(phase).mean()),
            share(steps.share(phase)),
            milliseconds(device.phase_ns(phase).mean()),
            share(device.share(phase)),
        )
        for phase in PHASES
        if steps.share(phase) > 0 or device.share(phase) > 0
    ]
    return joined(
        (
            element("p", _idle(steps, device)),
            table(_HEAD, rows, numbers=4),
            explained(
                "The script only queues work for the accelerator, which comes to it later, so the "
                "two need not agree: while there is work in the queue, the script may wait without "
                "costing anything. Gaps between the kernels of one phase count for that phase; "
                "how busy the GPU itself was, where that was recorded, is in the heatmap."
            ),
            _left_out(device),
        )
    )


def _idle(steps: TrainSteps, device: DeviceSteps) -> str:
    return (
        f"The accelerator had nothing to do for want of data in {share(device.share('data_wait'))} "
        f"of its time; the script waited for data in {share(steps.share('data_wait'))} of its own."
    )


def _left_out(device: DeviceSteps) -> Html | None:
    lost = int((~device.known).sum())
    if not lost:
        return None
    return explained(f"By the accelerator's clock {lost:,} of these steps were not recorded.")
