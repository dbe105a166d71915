"""The histogram of data waits."""

from __future__ import annotations

from headrace.report.charts import chart
from headrace.report.figures.waits import Waits, data_waits, read_waits
from headrace.report.markup import element
from headrace.report.material import Material
from headrace.report.section import Section, explained, note, section
from headrace.report.telling import counted, number, share


def waits_section(material: Material) -> Section:
    """Return the section that shows how long ranks waited for each batch."""
    waits, figure = read_waits(material.tables), data_waits(material.tables)
    title = "Waits for data"
    if waits is None or figure is None:
        return section(
            "waits",
            title,
            note(
                "No wait for a batch was recorded: the script uses no data loader that is known, "
                "or it took no batch."
            ),
        )
    return section(
        "waits",
        title,
        explained(
            "How long a rank waited each time it asked for the next batch to train on. A batch "
            "that is ready takes a fraction of a millisecond; a wait longer than that is time in "
            "which the accelerator has nothing to do. Grey bars count the waits, orange bars the "
            "time that they took together: a few long ones can matter more than many short "
            "ones. Each mark on the axis is ten times the one before it."
        ),
        chart("waits", figure, "Waits by their length: their number, and the time they took"),
        element("p", _summary(waits)),
    )


def _summary(waits: Waits) -> str:
    return (
        f"{counted(len(waits.wait_ms), 'wait')}: half took at most "
        f"{number(waits.percentile(50))} ms, 95% at most {number(waits.percentile(95))} ms, the "
        f"longest {number(waits.percentile(100))} ms. The longest 1% make up "
        f"{share(waits.share_of_longest(0.01))} of all waiting."
    )
