"""What a run says of itself at its end: one sentence, and where to read more."""

from __future__ import annotations

import json
import sys

from headrace.core.errors import HeadraceError
from headrace.observe.doctor.diagnose import diagnose
from headrace.records.reading import open_records
from headrace.records.run_folder import RunFolder


def tell_verdict(folder: RunFolder, attempt: int) -> None:
    """Diagnose an attempt that has ended, keep diagnosis.json and print the verdict on stderr.

    Whatever is wrong with the records, the run's own exit code stands.
    """
    if not folder.records(attempt).exists():
        return
    try:
        diagnosis = diagnose(open_records(folder.path, attempt))
        text = json.dumps(diagnosis.to_json(), indent=2) + "\n"
        (folder.path / "diagnosis.json").write_text(text, encoding="utf-8")
    except HeadraceError as error:
        sys.stderr.write(f"headrace: no verdict: {error}\n")
        return
    except Exception as error:  # noqa: BLE001 - a fault of ours must not become the run's
        sys.stderr.write(f"headrace: no verdict: {type(error).__name__}: {error}\n")
        return
    sys.stderr.write(f"headrace: {diagnosis.verdict.sentence}\n")
    if diagnosis.findings:
        sys.stderr.write(f"headrace: more: headrace doctor {folder.path}\n")
