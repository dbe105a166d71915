"""Which hosts to train on, of those compared: the front, and the one to take for a goal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.errors import UsageError
from headrace.core.units import format_seconds, format_usd
from headrace.decide.cost.predicted_mixes import ComparedHosts, PredictedMix

_AS_CHEAP = 1.02
"""Costs that differ by less count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted; without any of it, the cheapest samples.

    Attributes:
        samples_per_s: At least so many.
        deadline_s: For so many `samples`.
        budget_usd: For the same.
        samples: To train on.
    """

    samples_per_s: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    samples: int = 0

    @property
    def least_samples_per_s(self) -> float:
        """The throughput that it takes; 0: any."""
        by_deadline = self.samples / self.deadline_s if self.deadline_s else 0.0
        return max(self.samples_per_s or 0.0, by_deadline)

    def is_affordable(self, mix: PredictedMix) -> bool:
        """Whether the samples cost no more than the budget."""
        if self.budget_usd is None:
            return True
        return mix.usd_per_1k_samples.value * self.samples / 1000 <= self.budget_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The mixes that a run could train on, as it is first, and the one to take.

    Attributes:
        front: Those to choose from than which none is both faster and cheaper by sample, slowest
            first.
        reason: Why the recommended one is, in a sentence.
        left_out: Which hosts are not compared, and why, in a sentence; "": none.
    """

    run: str
    mixes: tuple[PredictedMix, ...]
    front: tuple[PredictedMix, ...]
    recommended: PredictedMix
    reason: str
    left_out: str = ""

    @property
    def shown(self) -> tuple[PredictedMix, ...]:
        """Those worth a look, cheapest samples first.

        They are the run as it is, the front, the recommended one, the cheapest of each kind, and
        all remedies.
        """
        found = {id(mix): mix for mix in (self.mixes[0], *self.front, self.recommended)}
        for kind in dict.fromkeys(mix.mix.kind for mix in self.mixes):
            best = min((mix for mix in self.mixes if mix.mix.kind == kind), key=_cost)
            found[id(best)] = best
        found |= {id(mix): mix for mix in self.mixes if mix.remedy}
        return tuple(sorted(found.values(), key=_cost))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        return {
            "run": self.run, "reason": self.reason, "recommended": self.recommended.to_json(),
            "left_out": self.left_out,
            "front": [mix.name for mix in self.front],
            "mixes": [mix.to_json() for mix in self.mixes],
        }  # fmt: skip


def advise(compared: ComparedHosts, goal: Goal) -> Advice:
    """Return which hosts are best for a goal, whose samples are those of the run by default.

    Raises UsageError: none reaches the goal; the message says the most that can be had.
    """
    if not goal.samples:
        goal = replace(goal, samples=compared.samples)
    recommended, reason = _choose(compared, goal)
    return Advice(
        run=compared.run, mixes=compared.mixes, front=tuple(_front(compared.choices)),
        recommended=recommended, reason=reason, left_out=compared.left_out,
    )  # fmt: skip


def _front(mixes: Sequence[PredictedMix]) -> Iterator[PredictedMix]:
    """Yield the mixes than which no other is both faster and cheaper, slowest first."""
    cheapest = float("inf")
    kept = []
    for mix in sorted(mixes, key=lambda mix: (-mix.samples_per_s.value, _cost(mix))):
        if mix.usd_per_1k_samples.value < cheapest:
            cheapest = mix.usd_per_1k_samples.value
            kept.append(mix)
    yield from reversed(kept)


def _choose(compared: ComparedHosts, goal: Goal) -> tuple[PredictedMix, str]:
    """Return the mix to take, and why; raises UsageError where none reaches the goal."""
    usable = compared.choices
    fast = [mix for mix in usable if mix.samples_per_s.value >= goal.least_samples_per_s]
    if not fast:
        raise UsageError(_too_slow(compared, goal))
    affordable = [mix for mix in fast if goal.is_affordable(mix)]
    if not affordable:
        cheapest = min(fast, key=_cost)
        usd = cheapest.usd_per_1k_samples.value * goal.samples / 1000
        raise UsageError(
            f"--budget {goal.budget_usd:g}: {goal.samples:,} samples cost ${format_usd(usd)} at "
            f"least, on {cheapest.name}.{_not_compared(compared)}"
        )
    if goal.budget_usd is not None:
        best = max(affordable, key=_rate)
    else:
        least = min(map(_cost, affordable))
        as_cheap = [mix for mix in affordable if _cost(mix) <= least * _AS_CHEAP]
        best = max(as_cheap, key=_rate)
    return best, _reason(best, compared.mixes[0], goal)


def _too_slow(compared: ComparedHosts, goal: Goal) -> str:
    fastest = max(compared.choices, key=_rate)
    is_target = goal.least_samples_per_s == goal.samples_per_s
    wanted = (
        f"--target {goal.samples_per_s:g}" if is_target
        else f"--deadline {format_seconds(goal.deadline_s or 0.0)} for {goal.samples:,} samples"
    )  # fmt: skip
    changed = max((mix for mix in compared.mixes if mix.needs_code), key=_rate, default=fastest)
    more = ""
    if _rate(changed) > _rate(fastest):
        more = f" A change of the script gives {_rate(changed):,.4g}: {changed.name}."
    return (
        f"{wanted}: it takes {goal.least_samples_per_s:,.4g} samples/s, and the most that can be "
        f"had is {_rate(fastest):,.4g}, on {fastest.name}.{more}{_not_compared(compared)}"
    )


def _not_compared(compared: ComparedHosts) -> str:
    """Return the sentence on hosts that might yet reach a goal, after others; "": there is none."""
    return f" {compared.left_out}" if compared.left_out else ""


def _reason(best: PredictedMix, now: PredictedMix, goal: Goal) -> str:
    rate, cost = best.samples_per_s, _cost(best)
    why = "the cheapest samples"
    if goal.budget_usd is not None:
        why = "the fastest within the budget"
    elif goal.least_samples_per_s:
        why = "the cheapest that is fast enough"
    if best is now:
        return f"Keep {now.name}, {why}: ${format_usd(cost)} per 1,000."
    than_now = ""
    if _cost(now):  # else its hosts cost nothing
        change = cost / _cost(now) - 1.0
        than_now = f", {abs(change):.0%} {'less' if change < 0 else 'more'} than now"
    return (
        f"Take {best.name}, {why}: {rate.value:,.4g} samples/s predicted ({rate.low:,.4g} to "
        f"{rate.high:,.4g}), {best.speedup:.2f}x as now, ${format_usd(cost)} per 1,000{than_now}."
    )


def _rate(mix: PredictedMix) -> float:
    return mix.samples_per_s.value


def _cost(mix: PredictedMix) -> float:
    return mix.usd_per_1k_samples.value
