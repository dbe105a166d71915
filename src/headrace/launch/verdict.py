"""What a run says of itself at its end: one sentence, and where to read more."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from headrace.core.errors import HeadraceError
from headrace.core.files import write_whole
from headrace.launch.told import tell
from headrace.records.reading import open_records
from headrace.records.run_folder import RunFolder
from headrace.report.material import Material, read_material
from headrace.report.write import FILE, write_page

_Made = TypeVar("_Made")
_CLOSE_S, _LOOK_AGAIN_S = 15.0, 0.1


def tell_verdict(folder: RunFolder, attempt: int) -> None:
    """Diagnose an attempt that has ended, print the verdict on stderr, keep it and the page.

    Whatever is wrong with the records, the run's own exit code stands.
    """
    if not folder.records(attempt).exists():
        return
    _until_closed(folder, attempt)
    material = tried("verdict", lambda: _diagnosed(folder, attempt))
    if material is None:
        return
    verdict = material.diagnosis.verdict
    tell(f"headrace: {verdict.sentence}\n")
    for gap in material.diagnosis.gaps:
        tell(f"headrace: {gap}\n")
    page = (
        tried("page", lambda: write_page(material, folder.path / FILE)) if verdict.steps else None
    )
    if page is not None:
        tell(f"headrace: more: headrace doctor {folder.path}, or open {page}\n")


def _until_closed(folder: RunFolder, attempt: int) -> None:
    """Wait a while: where torchrun itself was killed, its records are being closed now."""
    deadline = time.monotonic() + _CLOSE_S
    with suppress(HeadraceError):  # told by who reads them next
        while open_records(folder.path, attempt).live and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)


def _diagnosed(folder: RunFolder, attempt: int) -> Material:
    material = read_material(open_records(folder.path, attempt))
    text = json.dumps(material.diagnosis.to_json(), indent=2) + "\n"
    write_whole(folder.path / "diagnosis.json", text)
    return material


def tried(what: str, make: Callable[[], _Made]) -> _Made | None:
    """Return what `make` makes; where it cannot, say so and return None.

    Args:
        what: What is made of a run that has ended.
        make: Makes it.
    """
    try:
        return make()
    except HeadraceError as error:
        tell(f"headrace: no {what}: {error}\n")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not become the run's
        tell(f"headrace: no {what}: {type(error).__name__}: {error}\n")
    return None
