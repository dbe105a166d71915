"""Writes a run's page."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.files import write_whole
from headrace.records.reading import open_records
from headrace.report.material import Material, read_material
from headrace.report.page import page_of

FILE = "report.html"


def write_report(
    run: str | Path, attempt: int | None = None, output: str | Path | None = None
) -> Path:
    """Write the page about a run and return where it is.

    Args:
        run: The run's folder, or its name below the runs folder.
        attempt: The attempt's number; None: the latest that has records.
        output: The file; None: report.html in the run's folder.

    Raises:
        UsageError: There is no such run, or the file cannot be written.
        RecordsError: It has no records, or a newer version wrote them.
    """
    material = read_material(open_records(run, attempt))
    return write_page(material, output if output is not None else material.path / FILE)


def write_page(material: Material, output: str | Path) -> Path:
    """Write the page about what is known of a run and return where it is.

    Args:
        material: What is known.
        output: The file, or a folder for it.

    Raises:
        UsageError: The file cannot be written.
    """
    page = page_of(material)
    path = Path(output).expanduser()
    if path.is_dir():
        path /= FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page)  # a browser may be reading it
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error}. Give another file with --output."
        ) from error
    return path.resolve()
