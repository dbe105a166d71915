"""The page that compares runs: speed, settings, phases, metrics, curves, cost and heatmaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import HeadraceError, RecordsError
from headrace.core.units import format_seconds, format_usd
from headrace.decide.cost.run_cost import GroupCost, RunCost
from headrace.decide.cost.run_use import Utilisation
from headrace.decide.experiments.compared_runs import ComparedRun, fastest_sentence
from headrace.decide.experiments.metric_curves import (
    STEP_TIME_PREFIX,
    Curve,
    RunCurves,
    read_run_curves,
)
from headrace.decide.experiments.run_target import JOB_PREFIX
from headrace.observe.whatif.tables import CachedTables
from headrace.platforms.instance_groups import AUXILIARY, TRAINING
from headrace.records.reader import open_records
from headrace.records.schema import PHASES
from headrace.report.charts.heatmap import heatmap_chart
from headrace.report.charts.run_curves import by_family, overlaid_curves, phases_by_run
from headrace.report.document import html_document, write_document
from headrace.report.formatting import format_number, format_share, phase_name
from headrace.report.markup import (
    Html,
    Section,
    chart_place,
    element,
    explanation,
    join_html,
    left_out_note,
    note,
    section,
    table,
)

COMPARISON_FILE = "comparison.html"
_UNKNOWN = "-"
_MOST_CURVES, _MOST_HEATMAPS = 40, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonData:
    """What a page that compares runs is made of.

    Attributes:
        name: The page's heading.
        runs: Two or more; each is compared with the first.
        curves: Of each of the runs.
        notes: What is missing, a sentence each.
    """

    name: str
    runs: Sequence[ComparedRun]
    curves: Sequence[RunCurves]
    notes: Sequence[str] = ()


def read_comparison_data(
    runs: Sequence[ComparedRun], name: str, notes: Sequence[str] = ()
) -> ComparisonData:
    """Return what a page about compared runs is made of; metrics that cannot be read are noted."""
    curves, missing = [], list(notes)
    unreachable: dict[str, HeadraceError] = {}
    for run in runs:
        try:
            curves.append(read_run_curves(run.folder, unreachable=unreachable))
        except RecordsError as error:
            curves.append(RunCurves())
            missing.append(str(error))
    return ComparisonData(name=name, runs=runs, curves=curves, notes=missing)


def write_comparison(data: ComparisonData, output: str | Path) -> Path:
    """Write the page into a file or folder, and return its path; raises UsageError."""
    sections = comparison_sections(data)
    subtitle = f"{len(data.runs)} runs, compared with {data.runs[0].name}"
    document = html_document(data.name, "comparison", sections, subtitle=subtitle)
    return write_document(document, output, COMPARISON_FILE, flag="--html")


def comparison_sections(data: ComparisonData, *, heatmaps: bool = True) -> list[Section]:
    """Return the page's sections, with or without the runs' heatmaps."""
    makers = SECTIONS if heatmaps else SECTIONS[:-1]
    return [built for make in makers if (built := make(data)) is not None]


def _runs_section(data: ComparisonData) -> Section:
    head = (
        "Run", "Speed", "90% interval", "ms a step", "Samples/s", "Data wait", "CPU", "GPU",
        "Auxiliary CPU", "$/1,000 samples",
    )  # fmt: skip
    return section(
        "runs",
        "Runs",
        element("p", fastest_sentence(data.runs), class_="sentence info"),
        *map(note, data.notes),
        explanation(
            "Speed is by samples a second of all ranks together, or by steps a second where "
            "samples were not counted. An interval that holds 1 is noise."
        ),
        table(head, [_run_row(run, data.runs[0]) for run in data.runs], numbers=len(head) - 1),
    )


def _run_row(run: ComparedRun, first: ComparedRun) -> tuple[str, ...]:
    interval = "" if run is first else f"{run.low:.2f} to {run.high:.2f}"
    training = run.utilisation.get(TRAINING, Utilisation())
    auxiliary = run.utilisation.get(AUXILIARY, Utilisation())
    return (
        run.name, f"{run.speedup:.2f}x", interval if run.differs or not interval else
        f"noise: {interval}", f"{run.step_ms:,.2f}", _number(run.samples_per_s),
        format_share(run.data_wait_share), _share(training.cpu),
        _share(training.gpu), _share(auxiliary.cpu),
        _usd(run.usd_per_1k_samples),
    )  # fmt: skip


def _settings_section(data: ComparisonData) -> Section | None:
    names = list(dict.fromkeys(name for run in data.runs for name in run.settings))
    if not names:
        return None
    rows = [(run.name, *(run.settings.get(name, _UNKNOWN) for name in names)) for run in data.runs]
    return section(
        "settings",
        "Settings that differ",
        table(("Run", *names), rows),
    )


def _phases_section(data: ComparisonData) -> Section:
    known = [name for name in PHASES if any(run.phases_ms.get(name) for run in data.runs)]
    rows = [
        (run.name, *(f"{run.phases_ms.get(name, 0.0):,.2f}" for name in known)) for run in data.runs
    ]
    return section(
        "phases",
        "Phases",
        chart_place(
            "phases", "The mean step of each run, split into phases.", phases_by_run(data.runs)
        ),
        explanation(
            "In ms of a mean step by the script's clock, warm-up left out. Where an accelerator's "
            "clock is recorded, the data wait above is by that one: what the script waits for "
            "while the accelerator still has work costs nothing."
        ),
        table(("Run", *map(phase_name, known)), rows, numbers=len(known)),
    )


def _metrics_section(data: ComparisonData) -> Section | None:
    # The phases, as `headrace run` names them, have a section of their own.
    phases = (STEP_TIME_PREFIX, f"{JOB_PREFIX}phase.")
    names = sorted(
        {name for each in data.curves for name in each.last if not name.startswith(phases)}
    )
    if not names:
        return None
    runs = [run.name for run in data.runs]
    rows = [(name, *(_number(each.last.get(name)) for each in data.curves)) for name in names]
    return section(
        "metrics",
        "Metrics",
        explanation("The last value of each, as MLflow has it."),
        table(("Metric", *runs), rows, numbers=len(runs)),
    )


def _curves_section(data: ComparisonData) -> Section | None:
    by_metric: dict[str, dict[str, Curve]] = {}
    for run, each in zip(data.runs, data.curves, strict=True):
        for name, curve in each.curves.items():
            if any(curve.values) or not name.startswith(STEP_TIME_PREFIX):
                by_metric.setdefault(name, {})[run.name] = curve
    if not by_metric:
        return None
    order = [run.name for run in data.runs]
    steps = sorted(name for name in by_metric if name.startswith(STEP_TIME_PREFIX))
    names = [*by_family(by_metric.keys() - set(steps)), *steps]
    drawn = (
        _curve_chart(place, name, by_metric[name], order)
        for place, name in enumerate(names[:_MOST_CURVES])
    )
    return section(
        "curves",
        "Curves",
        explanation(
            "The runs' time series over each other, in the same colours everywhere, thinned out to "
            "a few hundred points."
        ),
        element("div", *drawn, class_="curves"),
        left_out_note(len(names) - _MOST_CURVES, "curve", "in MLflow"),
    )


def _curve_chart(place: int, name: str, curves: dict[str, Curve], order: Sequence[str]) -> Html:
    phase = name.removeprefix(STEP_TIME_PREFIX)
    title = "step" if phase == "all" else phase_name(phase)
    shown = f"{title}, ms a step" if phase != name else name
    drawn = chart_place(
        f"curve-{place}", f"{shown} of each run by step.", overlaid_curves(curves, order)
    )
    return element("div", element("h3", shown), drawn)


def _cost_section(data: ComparisonData) -> Section | None:
    costs = [(run.name, run.cost) for run in data.runs if run.cost is not None]
    if not costs:
        return None
    head = (
        "Run", "Group", "Instance type", "Hosts", "$ an hour each", "CPU", "GPU", "$",
        "Run's time", "Run's $", "on data wait", "$/1,000 samples",
    )  # fmt: skip
    return section(
        "cost",
        "Cost",
        explanation("All hosts are paid for from the begin of each attempt to its end, on demand."),
        table(head, [row for name, cost in costs for row in _cost_rows(name, cost)], numbers=9),
    )


def _cost_rows(name: str, cost: RunCost) -> Iterator[tuple[str, ...]]:
    """Yield a row a group, the run's own numbers in the first of them."""
    wait = _UNKNOWN if cost.data_wait_usd is None else format_usd(cost.data_wait_usd)
    whole = format_seconds(cost.seconds), format_usd(cost.usd), wait, _usd(cost.usd_per_1k_samples)
    for place, group in enumerate(cost.groups):
        of_run = ("",) * len(whole) if place else whole
        yield ("" if place else name, *_group_cells(group), *of_run)


def _group_cells(group: GroupCost) -> tuple[str, ...]:
    return (
        group.name, group.instance_type or _UNKNOWN, f"{group.hosts}", f"{group.usd_per_hour:.3f}",
        _share(group.cpu_utilisation), _share(group.gpu_utilisation), format_usd(group.usd),
    )  # fmt: skip


def _heatmaps_section(data: ComparisonData) -> Section | None:
    drawn = []
    for place, run in enumerate(data.runs[:_MOST_HEATMAPS]):
        found = heatmap_chart(CachedTables(open_records(run.folder)))
        if found is not None:
            text = f"How busy each rank, worker and core of {run.name} was over time."
            place_of = chart_place(f"heatmap-{place}", text, found)
            drawn.append(join_html(element("h3", run.name), place_of))
    if not drawn:
        return None
    return section(
        "heatmaps",
        "Utilisation",
        explanation(
            "How busy each rank, GPU, worker and core was; a rank waits for data where dark."
        ),
        *drawn,
        left_out_note(len(data.runs) - _MOST_HEATMAPS, "heatmap", "in the runs' reports"),
    )


SECTIONS: tuple[Callable[[ComparisonData], Section | None], ...] = (
    _runs_section,
    _settings_section,
    _phases_section,
    _cost_section,
    _metrics_section,
    _curves_section,
    _heatmaps_section,
)
"""The page's sections, in reading order."""


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else format_number(value)


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else format_share(value)


def _usd(value: float | None) -> str:
    return _UNKNOWN if value is None else format_usd(value)
