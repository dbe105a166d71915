"""Which hosts to train on: throughput and cost of others, predicted from one measured run.

    dollars per 1,000 samples = dollars an hour of all hosts / (3.6 x samples a second)

Throughput is the measured one times what the what-if model predicts of the change (see
headrace/observe/whatif): more cores with as many workers each, auxiliary hosts, several ranks on a
host or several hosts. Cores of other types are taken to be as fast as those of the run's host, in
auxiliary hosts 0.8 to 1.25 times so. Where the run had one rank, gradient sync was not measured,
and is assumed to take between nothing and a fifth of a rank's own time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError, UsageError
from headrace.core.units import format_seconds, format_usd
from headrace.decide.cost.host_mixes import HostMix, Market, PricedHosts, cloud_of, host_mixes
from headrace.decide.cost.run_cost import GroupCost, Pricing, last_groups
from headrace.observe.doctor.diagnosis import change_phrase, diagnose
from headrace.observe.doctor.findings import Diagnosis
from headrace.observe.whatif.measured_pipeline import measure
from headrace.observe.whatif.prediction import (
    Estimate,
    Prediction,
    Simulator,
    interval_width,
    with_auxiliary,
    with_workers,
)
from headrace.observe.whatif.tables import CachedTables
from headrace.observe.whatif.train_steps import TrainSteps, read_steps
from headrace.platforms.instance_groups import AUXILIARY, TRAINING
from headrace.records.reader import open_records

_MOST_AUXILIARY_CORES = 128.0  # for each rank, as the model simulates no more
_UNMEASURED_SYNC = 0.2  # of a rank's own time, at most
_WORTH_MENTIONING = 1.05
_AS_CHEAP = 1.02
"""Costs that differ by less count as equal."""
_UNCHANGED = Prediction(
    speedup=1.0, low=1.0 - interval_width(1.0), high=1.0 + interval_width(1.0), wait_share=0.0
)
"""Of the same hosts: two runs differ."""
_NO_WAIT, _NO_GAIN, _MORE_CORES = 0.01, 1.002, 1.5
"""More auxiliary cores give nothing more where data is waited for less than this share of the time,
or where so many times the cores were no faster than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMix:
    """Hosts, with what is predicted of the run on them.

    Attributes:
        remedy: What is changed on the run's own hosts; "": nothing.
        needs_code: Whether the remedy is a change of the script.
        workers: Of each rank's loader; None: as they are.
        samples_per_s: Of all ranks together.
        speedup: Over the run as it is.
        assumptions: What was not measured, a sentence each.
    """

    mix: HostMix
    remedy: str = ""
    needs_code: bool = False
    workers: int | None = None
    samples_per_s: Estimate
    speedup: float
    wait_share: float
    assumptions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The hosts, and what is changed there."""
        with_workers = f"{self.workers} workers a rank" if self.workers is not None else ""
        change = self.remedy or with_workers
        return f"{self.mix.name}, {change}" if change else self.mix.name

    @property
    def usd_per_1k_samples(self) -> Estimate:
        """Dollars for 1,000 samples, start-up left out."""
        rate, usd = self.samples_per_s, self.mix.usd_per_hour / 3.6
        return Estimate(usd / rate.value, usd / rate.high, usd / max(rate.low, 1e-9))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        rate, cost = self.samples_per_s, self.usd_per_1k_samples
        return {
            "name": self.name, "kind": "remedy" if self.remedy else self.mix.kind,
            "usd_per_hour": self.mix.usd_per_hour, "needs_code": self.needs_code,
            "workers": self.workers, "speedup": self.speedup, "wait_share": self.wait_share,
            "samples_per_s": {"value": rate.value, "low": rate.low, "high": rate.high},
            "usd_per_1k_samples": {"value": cost.value, "low": cost.low, "high": cost.high},
            "assumptions": list(self.assumptions),
        }  # fmt: skip


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
        front: Those than which none is both faster and cheaper by sample, slowest first.
        reason: Why the recommended one is, in a sentence.
    """

    run: str
    mixes: tuple[PredictedMix, ...]
    front: tuple[PredictedMix, ...]
    recommended: PredictedMix
    reason: str

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
            "front": [mix.name for mix in self.front],
            "mixes": [mix.to_json() for mix in self.mixes],
        }  # fmt: skip


def advise(run: Path, pricing: Pricing, goal: Goal, *, cloud: str = "") -> Advice:
    """Return which hosts a recorded run could train on, and which are best for a goal.

    Args:
        run: Its folder.
        pricing: Of its own hosts, and of others.
        goal: What is wanted; its samples are those of the run by default.
        cloud: Whose hosts are considered; "": those of the cloud that has the run's own.

    Raises:
        RecordsError: Too little of the run was recorded, or it counted no samples.
        UnknownPriceError: The type or price of its own hosts is unknown.
        UsageError: No price of other hosts is known, or none reaches the goal; the message says
            the most that can be had.
    """
    tables = CachedTables(open_records(run))
    steps = read_steps(tables)
    measured = measure(tables)
    rate = steps.samples_per_s
    if measured is None or rate is None:
        why = "it counted no samples" if measured is not None else "too few steps were recorded"
        raise RecordsError(f"Nothing can be predicted of {run.name}: {why}.")
    model = _RunModel(Simulator(measured), steps, rate)
    own = _own_hosts(run, pricing)
    market = Market(
        catalogue=pricing.catalogue, cloud=cloud or cloud_of(own.training.instance_type),
        region=pricing.region, spot=pricing.spot,
    )  # fmt: skip
    predicted = list(_predicted(model, own, market))
    predicted += _with_remedies(predicted[0], diagnose(tables))
    if not goal.samples:
        goal = replace(goal, samples=int(steps.rows["samples"].sum()))
    recommended, reason = _choose(predicted, goal)
    return Advice(
        run=run.name, mixes=tuple(predicted), front=tuple(_front(predicted)),
        recommended=recommended, reason=reason,
    )  # fmt: skip


def _own_hosts(run: Path, pricing: Pricing) -> HostMix:
    """Return the hosts of a run; raises UsageError where they train as several groups."""
    groups: dict[str, list[PricedHosts]] = {}
    for role, group in last_groups(run, pricing):
        groups.setdefault(role, []).append(_host_group(group))
    training, auxiliary = groups.get(TRAINING, []), groups.get(AUXILIARY, [])
    if len(training) != 1:
        raise UsageError(
            f"{run.name} trains on {len(training)} groups of hosts; advice is given for one."
        )
    return HostMix(
        kind="as it is", training=training[0], auxiliary=auxiliary[0] if auxiliary else None
    )


def _host_group(group: GroupCost) -> PricedHosts:
    if group.price is not None:
        found = PricedHosts.of(group.price, group.usd_per_hour)
    else:
        found = PricedHosts(
            instance_type=group.instance_type, hosts=1, usd_per_hour=group.usd_per_hour
        )
    return replace(found, hosts=group.hosts)


@dataclass(frozen=True, slots=True)
class _RunModel:
    """A measured run, and what is predicted of it on other hosts."""

    simulator: Simulator
    steps: TrainSteps
    rate: float  # samples a second of all ranks
    _by_auxiliary_cores: dict[float, Prediction] = field(default_factory=dict)  # for each rank

    @property
    def ranks(self) -> int:
        """On each host."""
        return self.simulator.measured.ranks

    @property
    def cores(self) -> float:
        """Of a host, as the job may use them."""
        return self.simulator.measured.pipeline.cores * self.ranks

    def unchanged(self, mix: HostMix) -> PredictedMix:
        wait = self.simulator.before.wait_share
        return self._of(mix, replace(_UNCHANGED, wait_share=wait))

    def on_other_host(self, mix: HostMix, now: PricedHosts) -> PredictedMix:
        """Return what is predicted of a host with other cores, or with more accelerators."""
        factor = (mix.training.cores or 0.0) / (now.cores or self.cores)
        cores, times = self.cores * factor, 1.0
        if mix.kind == "more accelerators":
            times = mix.training.accelerators / now.accelerators
        ranks = round(self.ranks * times)
        workers = self.simulator.measured.pipeline.workers * self.ranks
        a_rank = max(round(workers * factor / ranks), int(cores / ranks), 1)
        found = with_workers(self.simulator, a_rank, cores=cores, ranks=ranks)
        if times == 1.0:
            return self._of(mix, found, workers=a_rank)
        return self._of(mix, *self._with_sync(found, ranks), times=times, workers=a_rank)

    def on_more_hosts(self, mix: HostMix, now: PricedHosts) -> PredictedMix:
        times = mix.training.hosts / now.hosts
        world = len(self.steps.ranks)
        found = replace(_UNCHANGED, wait_share=self.simulator.before.wait_share)
        return self._of(mix, *self._with_sync(found, round(world * times)), times=times)

    def with_auxiliary(self, mix: HostMix, cores: float) -> PredictedMix:
        """Return what is predicted of auxiliary cores for each rank.

        Those beyond what it can use are not simulated, which takes long.
        """
        known = self._by_auxiliary_cores
        enough = self._enough_cores()
        if cores not in known and cores < enough:
            known[cores] = with_auxiliary(self.simulator, cores)
        return self._of(mix, known[min(cores, enough)])

    def _enough_cores(self) -> float:
        """Return from how many auxiliary cores on more of them give nothing, as far as known."""
        known = sorted(self._by_auxiliary_cores.items())
        for place, (cores, found) in enumerate(known):
            more = [each.speedup for other, each in known[place:] if other >= _MORE_CORES * cores]
            if found.wait_share < _NO_WAIT or (more and max(more) < _NO_GAIN * found.speedup):
                return cores
        return float("inf")

    def _with_sync(self, found: Prediction, world: int) -> tuple[Prediction, str]:
        """Return a prediction with gradient sync of a number of ranks, and what is assumed of it.

        A ring sends 2 (n - 1) / n times the gradients over each of its connections.
        """
        now = len(self.steps.ranks)
        own_share = 1.0 - self.steps.data_wait_share
        if now > 1:
            grown = ((world - 1) / world) / ((now - 1) / now) - 1.0
            share, text = self.steps.share("sync") * grown, "gradient sync as between its ranks"
            slower = Estimate(share, share, share)
        else:
            most = _UNMEASURED_SYNC * own_share
            slower = Estimate(most / 2, 0.0, most)
            text = f"gradient sync, not measured, takes up to {_UNMEASURED_SYNC:.0%} of a step"
        # While data is waited for, sync takes place in that time.
        hidden = found.wait_share
        return replace(
            found,
            speedup=found.speedup / (1.0 + slower.value * (1.0 - hidden)),
            low=found.low / (1.0 + slower.high * (1.0 - hidden)),
            high=found.high / (1.0 + slower.low * (1.0 - hidden)),
        ), text

    def _of(
        self, mix: HostMix, found: Prediction, *assumptions: str, times: float = 1.0,
        workers: int | None = None,
    ) -> PredictedMix:  # fmt: skip
        speedups = Estimate(found.speedup, found.low, found.high)
        return PredictedMix(
            mix=mix, workers=workers, samples_per_s=speedups.times(self.rate * times),
            speedup=found.speedup * times, wait_share=found.wait_share, assumptions=assumptions,
        )  # fmt: skip


def _predicted(model: _RunModel, own: HostMix, market: Market) -> Iterator[PredictedMix]:
    """Yield what is predicted of each mix, the run's own first."""
    training = own.training
    for mix in host_mixes(own, market):
        if mix.kind == "as it is":
            yield model.unchanged(mix)
        elif mix.kind == "more hosts":
            yield model.on_more_hosts(mix, training)
        elif mix.kind != "auxiliary hosts" or mix.auxiliary is None:
            yield model.on_other_host(mix, training)
        else:
            hosts = mix.auxiliary.hosts / training.hosts
            cores = hosts * (mix.auxiliary.cores or 0.0) / model.ranks
            if cores <= _MOST_AUXILIARY_CORES:
                yield model.with_auxiliary(mix, cores)


def _with_remedies(now: PredictedMix, diagnosis: Diagnosis) -> Iterator[PredictedMix]:
    """Yield what the doctor's remedies give on the run's own hosts."""
    seen: set[str] = set()
    for finding in diagnosis.findings:
        for remedy in finding.remedies:
            text = change_phrase(remedy)
            worth = (remedy.predicted_speedup or 0.0) >= _WORTH_MENTIONING
            if finding.forecast or not worth or text in seen:
                continue
            seen.add(text)
            speedup = remedy.predicted_speedup or 1.0
            rate = now.samples_per_s.value
            yield replace(
                now, remedy=text, needs_code=not remedy.overrides, speedup=speedup,
                samples_per_s=Estimate(
                    rate * speedup, rate * (remedy.low or speedup), rate * (remedy.high or speedup)
                ),
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


def _choose(mixes: Sequence[PredictedMix], goal: Goal) -> tuple[PredictedMix, str]:
    """Return the mix to take, and why; raises UsageError where none reaches the goal."""
    usable = [mix for mix in mixes if not mix.needs_code]
    fast = [mix for mix in usable if mix.samples_per_s.value >= goal.least_samples_per_s]
    if not fast:
        raise UsageError(_too_slow(usable, goal))
    affordable = [mix for mix in fast if goal.is_affordable(mix)]
    if not affordable:
        cheapest = min(fast, key=_cost)
        usd = cheapest.usd_per_1k_samples.value * goal.samples / 1000
        raise UsageError(
            f"--budget {goal.budget_usd:g}: {goal.samples:,} samples cost ${format_usd(usd)} at "
            f"least, on {cheapest.name}."
        )
    if goal.budget_usd is not None:
        best = max(affordable, key=lambda mix: mix.samples_per_s.value)
    else:
        least = min(map(_cost, affordable))
        as_cheap = [mix for mix in affordable if _cost(mix) <= least * _AS_CHEAP]
        best = max(as_cheap, key=lambda mix: mix.samples_per_s.value)
    return best, _reason(best, mixes[0], goal)


def _too_slow(mixes: Sequence[PredictedMix], goal: Goal) -> str:
    fastest = max(mixes, key=lambda mix: mix.samples_per_s.value)
    is_target = goal.least_samples_per_s == goal.samples_per_s
    wanted = (
        f"--target {goal.samples_per_s:g}" if is_target
        else f"--deadline {format_seconds(goal.deadline_s or 0.0)} for {goal.samples:,} samples"
    )  # fmt: skip
    return (
        f"{wanted}: it takes {goal.least_samples_per_s:,.4g} samples/s, and the most that can be "
        f"had is {fastest.samples_per_s.value:,.4g}, on {fastest.name}."
    )


def _reason(best: PredictedMix, now: PredictedMix, goal: Goal) -> str:
    rate, cost = best.samples_per_s, best.usd_per_1k_samples.value
    why = "the cheapest samples"
    if goal.budget_usd is not None:
        why = "the fastest within the budget"
    elif goal.least_samples_per_s:
        why = "the cheapest that is fast enough"
    if best is now:
        return f"Keep {now.name}, {why}: ${format_usd(cost)} per 1,000."
    change = cost / now.usd_per_1k_samples.value - 1.0
    than_now = f"{abs(change):.0%} {'less' if change < 0 else 'more'} than now"
    return (
        f"Take {best.name}, {why}: {rate.value:,.4g} samples/s predicted ({rate.low:,.4g} to "
        f"{rate.high:,.4g}), {best.speedup:.2f}x as now, ${format_usd(cost)} per 1,000, {than_now}."
    )


def _cost(mix: PredictedMix) -> float:
    return mix.usd_per_1k_samples.value
