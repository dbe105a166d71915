"""What a run says of itself at its end: one sentence, and where to read more."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TypeVar

from headrace.core.errors import HeadraceError
from headrace.records.reading import open_records
from headrace.records.run_folder import RunFolder
from headrace.report.material import Material, read_material
from headrace.report.write import FILE, write_page

_Made = TypeVar("_Made")


def tell_verdict(folder: RunFolder, attempt: int) -> None:
    """Diagnose an attempt that has ended, print the verdict on stderr, keep it and the page.

    Whatever is wrong with the records, the run's own exit code stands.
    """
    if not folder.records(attempt).exists():
        return
    material = _tried("verdict", lambda: _diagnosed(folder, attempt))
    if material is None:
        return
    verdict = material.diagnosis.verdict
    sys.stderr.write(f"headrace: {verdict.sentence}\n")
    page = (
        _tried("page", lambda: write_page(material, folder.path / FILE)) if verdict.steps else None
    )
    if page is not None:
        sys.stderr.write(f"headrace: more: headrace doctor {folder.path}, or open {page}\n")


def _diagnosed(folder: RunFolder, attempt: int) -> Material:
    material = read_material(open_records(folder.path, attempt))
    text = json.dumps(material.diagnosis.to_json(), indent=2) + "\n"
    (folder.path / "diagnosis.json").write_text(text, encoding="utf-8")
    return material


def _tried(what: str, make: Callable[[], _Made]) -> _Made | None:
    """Return what `make` makes; where it cannot, say so and return None."""
    try:
        return make()
    except HeadraceError as error:
        sys.stderr.write(f"headrace: no {what}: {error}\n")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not become the run's
        sys.stderr.write(f"headrace: no {what}: {type(error).__name__}: {error}\n")
    return None
