"""The verdict of a run at its end: one sentence, the page, and SageMaker Debugger's rules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.files import write_text_atomically
from headrace.observe.doctor.diagnosis import diagnose
from headrace.records.reader import open_records
from headrace.records.run_folder import RunFolder
from headrace.report.page import REPORT_FILE, write_page
from headrace.report.page_data import PageData, read_page_data

_Made = TypeVar("_Made")
_CLOSE_S, _POLL_S = 15.0, 0.1


def print_verdict(folder: RunFolder, attempt: int) -> PageData | None:
    """Diagnose an attempt that has ended, print the verdict, and write diagnosis and page.

    Returns the data of the page; None where nothing was recorded. Broken records do not change the
    run's exit code.
    """
    if not folder.records(attempt).exists():
        return None
    _wait_until_closed(folder, attempt)
    data = try_to_make("verdict", lambda: _diagnose(folder, attempt))
    if data is None:
        return None
    verdict = data.diagnosis.verdict
    print_status(verdict.sentence)
    for gap in data.diagnosis.gaps:
        print_status(gap)
    if data.cost is not None:
        print_status(data.cost.sentence)
    elif data.cost_fault:
        print_status(f"no cost: {data.cost_fault}")
    if verdict.steps or data.diagnosis.findings:
        page = try_to_make("page", lambda: write_page(data, folder.path / REPORT_FILE))
        if page is not None:
            print_status(f"more: headrace doctor {folder.path}, or open {page}")
    return data


def _wait_until_closed(folder: RunFolder, attempt: int) -> None:
    """Wait until the records are closed, which takes a while after torchrun was killed."""
    deadline = time.monotonic() + _CLOSE_S
    with suppress(HeadraceError):  # the diagnosis reports it
        while open_records(folder.path, attempt).live and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _diagnose(folder: RunFolder, attempt: int) -> PageData:
    data = read_page_data(open_records(folder.path, attempt))
    found = {"attempt": attempt, **data.diagnosis.to_json()}
    text = json.dumps(found, indent=2) + "\n"
    write_text_atomically(folder.path / "diagnosis.json", text)
    return data


def try_to_make(what: str, make: Callable[[], _Made]) -> _Made | None:
    """Return what a function makes; where it fails, print that and return None."""
    try:
        return make()
    except HeadraceError as error:
        print_status(f"no {what}: {error}")
    except Exception as error:  # noqa: BLE001 - a fault of ours must not become the run's
        print_status(f"no {what}: {type(error).__name__}: {error}")
    return None


def print_rules(folder: RunFolder, number: int) -> None:
    """Print the outcome of each rule that the attempt was given, a line each.

    Broken records do not change the run's exit code.
    """
    for line in try_to_make("rules", lambda: _rule_lines(folder, number)) or ():
        print_status(line)


def _rule_lines(folder: RunFolder, number: int) -> list[str]:
    attempts = folder.attempts()
    asked = attempts[number - 1].asked.get("rules") if len(attempts) >= number else None
    if not asked:
        return []
    # Most jobs were given none, and end without importing the Debugger's configurations.
    from headrace.jobs.sagemaker_sdk.debugger import checked_rules, read_rules
    from headrace.jobs.sagemaker_sdk.rule_configs import DEFAULTS, REPORT

    wanted = checked_rules(read_rules(asked, ""))
    found = _rule_outcomes(folder, number, list(DEFAULTS) if REPORT in wanted else wanted)
    more = f"more: headrace doctor {folder.path} --rules sagemaker"
    return [*(f"rule {line}" for line in found), more]


def _rule_outcomes(folder: RunFolder, number: int, wanted: list[str]) -> list[str]:
    if not folder.records(number).exists():
        return [f"{rule}: not evaluated: nothing was recorded" for rule in wanted]
    found = diagnose(open_records(folder.path, number), "sagemaker")
    lines = [f"{each.rule}: {each.title}" for each in found.findings if each.rule in wanted]
    lines += [f"{rule}: found nothing" for rule in found.quiet if rule in wanted]
    return lines + [
        f"{each.rule}: not evaluated: {each.reason}"
        for each in found.not_evaluated
        if each.rule in wanted
    ]
