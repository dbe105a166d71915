"""The `headrace doctor` verb: where a run's time went, why, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.json_output import print_json
from headrace.cli.parameters import Run, RunsDir, find_run
from headrace.core.errors import UsageError

if TYPE_CHECKING:
    from headrace.observe.doctor.findings import RuleSet


def doctor(
    run: Run = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
    backtest: Annotated[
        bool, typer.Option("--backtest", help="Show how far checked predictions were off.")
    ] = False,
    rules: Annotated[
        str, typer.Option(help="Whose rules: headrace, or sagemaker for SageMaker Debugger's.")
    ] = "headrace",
    ranks: Annotated[
        int | None,
        typer.Option(help="Predict the run with so many ranks on its host, and what would help."),
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Say where a run's time went, which line is at fault, and what each remedy would give.

    Example: [bold]headrace doctor[/bold]
    """
    rule_set = _rule_set(rules)
    _check_exclusive(run, rule_set, backtest=backtest, ranks=ranks)
    from headrace.cli.doctor_report import print_backtest, print_diagnosis, print_ranks

    if backtest:
        from headrace.records.run_folder import runs_folder

        print_backtest(runs_folder(runs_dir), json=json)
        return
    if ranks is not None:
        print_ranks(run, runs_dir, ranks, json=json)
        return
    from headrace.observe.doctor.diagnosis import diagnose
    from headrace.records.reader import open_records

    found = find_run(run, runs_dir)
    diagnosis = diagnose(open_records(found), rule_set)
    if json:
        print_json(diagnosis.to_json())
        return
    print_diagnosis(diagnosis)


def _check_exclusive(
    run: str | None, rule_set: RuleSet, *, backtest: bool, ranks: int | None
) -> None:
    """Raise UsageError for flags that would have no effect."""
    flag = "--backtest" if backtest else "--ranks"
    given = {
        "RUN": run is not None and backtest,
        "--ranks": ranks is not None and backtest,
        "--rules": rule_set != "headrace" and (backtest or ranks is not None),
    }
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError(f"{flag} says nothing of {name}: leave one of them out.")


def _rule_set(name: str) -> RuleSet:
    from headrace.observe.doctor.findings import RULE_SETS

    for known in RULE_SETS:
        if name == known:
            return known
    raise UsageError(f"--rules {name}: there are no such rules. Write {' or '.join(RULE_SETS)}.")
