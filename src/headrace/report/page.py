"""The page about a run: its sections, and its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.records.reader import open_records
from headrace.report.document import html_document, write_document
from headrace.report.formatting import format_time
from headrace.report.markup import Section
from headrace.report.page_data import PageData, read_page_data
from headrace.report.sections import attempts, cost, curves, diagnosis, metrics, tables

SECTIONS: tuple[Callable[[PageData], Section | None], ...] = (
    diagnosis.verdict_section,
    diagnosis.findings_section,
    attempts.attempts_section,
    cost.cost_section,
    diagnosis.timeline_section,
    diagnosis.heatmap_section,
    curves.curves_section,
    metrics.metrics_section,
    diagnosis.waits_section,
    tables.transforms_section,
    tables.workers_section,
    tables.auxiliary_section,
    diagnosis.flame_section,
    tables.facts_section,
    tables.glossary_section,
)
"""The page's sections, in reading order."""
REPORT_FILE = "report.html"


def page_of(data: PageData) -> list[bytes]:
    """Return the page about a run, as HTML in pieces."""
    sections = [built for build in SECTIONS if (built := build(data)) is not None]
    return html_document(data.name, "report", sections, subtitle=page_subtitle(data))


def page_subtitle(data: PageData) -> str:
    """Return when the run began and how it is doing."""
    attempt = data.attempt_entry
    began = f"began {format_time(attempt.started_s)}" if attempt is not None else ""
    state = "going on" if data.live else "ended"
    if not data.live and attempt is not None and attempt.exit_code is None:
        state = "end not recorded"
    of_many = f"attempt {data.attempt}" if len(data.attempts) > 1 else ""
    return " · ".join(part for part in (began, state, of_many) if part)


def write_report(
    run: str | Path, attempt: int | None = None, output: str | Path | None = None
) -> Path:
    """Write the page about a run and return its path.

    Args:
        run: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest with records.
        output: The file; None: report.html in the run's folder.

    Raises:
        UsageError: There is no such run, or the file cannot be written.
        RecordsError: It has no records, or a newer version wrote them.
    """
    data = read_page_data(open_records(run, attempt))
    return write_page(data, output if output is not None else data.path / REPORT_FILE)


def write_page(data: PageData, output: str | Path) -> Path:
    """Write the page from data already read, into a file or folder, and return its path.

    Raises:
        UsageError: The file cannot be written.
    """
    return write_document(page_of(data), output, REPORT_FILE, flag="--output")
