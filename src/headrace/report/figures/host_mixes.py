"""The chart of hosts that a run could train on: cost of samples against throughput."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.decide.cost.advice import Advice
from headrace.decide.cost.predicted_mixes import PredictedMix
from headrace.report.figures.base import Figure, figure

_COLOURS = {
    "as it is": "#d6336c", "bigger host": "#3b7dd8", "auxiliary hosts": "#2a9d8f",
    "more accelerators": "#9c5fd6", "more hosts": "#e0a800", "remedy": "#e8590c",
}  # fmt: skip
_SYMBOLS = {
    "as it is": "star", "bigger host": "square", "auxiliary hosts": "circle",
    "more accelerators": "diamond", "more hosts": "triangle-up", "remedy": "cross",
}  # fmt: skip


def cost_against_throughput(advice: Advice) -> Figure:
    """Return the chart: a point for each mix, the front as a line, the recommended one ringed."""
    kinds = dict.fromkeys(map(_kind, advice.mixes))
    traces = [_front_line(advice.front), *(_points(advice, kind) for kind in kinds)]
    best = advice.recommended
    traces.append({
        "type": "scatter", "mode": "markers", "name": "recommended", "hoverinfo": "skip",
        "x": _values([best], _rate), "y": _values([best], _cost),
        "marker": {"symbol": "circle-open", "size": 20, "color": "#e8590c", "line": {"width": 2.5}},
    })  # fmt: skip
    return figure(
        traces,
        {
            "height": 460,
            "xaxis": {"title": {"text": "samples a second"}, "type": "log", "dtick": "D2",
                      "tickformat": ",~g"},
            "yaxis": {
                "title": {"text": "dollars per 1,000 samples"}, "type": "log", "dtick": "D2",
                "tickformat": "~g", "automargin": True,
            },
            "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom"},
            "margin": {"l": 64, "r": 32, "t": 40, "b": 52},
        },
    )  # fmt: skip


def _front_line(front: Sequence[PredictedMix]) -> Figure:
    return {
        "type": "scatter", "mode": "lines", "name": "none is faster and cheaper",
        "x": _values(front, _rate), "y": _values(front, _cost), "hoverinfo": "skip",
        "line": {"color": "#8d99a6", "width": 1.5, "dash": "dot"},
    }  # fmt: skip


def _points(advice: Advice, kind: str) -> Figure:
    """Return the points of a kind; those on the front are filled, others faint."""
    mixes = [mix for mix in advice.mixes if _kind(mix) == kind]
    on_front = {id(mix) for mix in advice.front}
    return {
        "type": "scatter", "mode": "markers", "name": kind,
        "x": _values(mixes, _rate), "y": _values(mixes, _cost),
        "text": [mix.name for mix in mixes],
        "marker": {
            "color": _COLOURS[kind], "symbol": _SYMBOLS[kind],
            "size": [13 if kind == "as it is" else 9 for _ in mixes],
            "opacity": [
                1.0 if id(mix) in on_front or kind == "as it is" else 0.35 for mix in mixes
            ],
        },
        "hovertemplate": "%{text}: %{x:,.4~g} samples/s, $%{y:.3~g} per 1,000",
    }  # fmt: skip


def _kind(mix: PredictedMix) -> str:
    return "remedy" if mix.remedy else mix.mix.kind


def _rate(mix: PredictedMix) -> float:
    return mix.samples_per_s.value


def _cost(mix: PredictedMix) -> float:
    return mix.usd_per_1k_samples.value


def _values(mixes: Sequence[PredictedMix], of: Callable[[PredictedMix], float]) -> list[float]:
    return [of(mix) for mix in mixes]
