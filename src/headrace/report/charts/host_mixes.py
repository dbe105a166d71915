"""The chart of hosts that a run could train on: cost of samples against throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from headrace.decide.cost.advice import Advice
from headrace.decide.cost.predicted_mixes import PredictedMix
from headrace.report.charts.base import Chart

Symbol = Literal["star", "square", "circle", "diamond", "triangle", "cross"]
_AS_IT_IS = "as it is"
_LOOKS: dict[str, tuple[str, Symbol]] = {
    _AS_IT_IS: ("#d6336c", "star"),
    "bigger host": ("#3b7dd8", "square"),
    "auxiliary hosts": ("#2a9d8f", "circle"),
    "more accelerators": ("#9c5fd6", "diamond"),
    "more hosts": ("#e0a800", "triangle"),
    "remedy": ("#e8590c", "cross"),
}
"""The colour and the symbol of each kind of mix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterPoint:
    """A point; a strong one is drawn in full, others faintly."""

    x: float
    y: float
    text: str
    strong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterGroup:
    """Points of one kind."""

    name: str
    colour: str
    symbol: Symbol
    points: tuple[ScatterPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScatterChart(Chart):
    """Points on two logarithmic axes, a line through the best, and the one that is recommended."""

    kind: ClassVar[str] = "scatter"
    x_title: str
    y_title: str
    groups: tuple[ScatterGroup, ...]
    front: tuple[tuple[float, float], ...]
    front_name: str
    chosen: tuple[float, float]
    chosen_name: str


def cost_against_throughput(advice: Advice) -> ScatterChart:
    """Return the chart: a point for each mix, the front as a line, the recommended one ringed."""
    kinds = dict.fromkeys(map(_kind, advice.mixes))
    return ScatterChart(
        x_title="samples a second",
        y_title="dollars per 1,000 samples",
        groups=tuple(_group(advice, kind) for kind in kinds),
        front=tuple(map(_place, advice.front)),
        front_name="none is faster and cheaper",
        chosen=_place(advice.recommended),
        chosen_name="recommended",
    )


def _group(advice: Advice, kind: str) -> ScatterGroup:
    """Return the points of a kind; those on the front are strong."""
    on_front = {id(mix) for mix in advice.front}
    colour, symbol = _LOOKS[kind]
    return ScatterGroup(
        name=kind,
        colour=colour,
        symbol=symbol,
        points=tuple(
            _point(mix, strong=id(mix) in on_front or kind == _AS_IT_IS)
            for mix in advice.mixes
            if _kind(mix) == kind
        ),
    )


def _point(mix: PredictedMix, *, strong: bool) -> ScatterPoint:
    x, y = _place(mix)
    text = f"{mix.name}: {x:,.4g} samples/s, ${y:.3g} per 1,000"
    return ScatterPoint(x=x, y=y, text=text, strong=strong)


def _place(mix: PredictedMix) -> tuple[float, float]:
    return mix.samples_per_s.value, mix.usd_per_1k_samples.value


def _kind(mix: PredictedMix) -> str:
    return "remedy" if mix.remedy else mix.mix.kind
