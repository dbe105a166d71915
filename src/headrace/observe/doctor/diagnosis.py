"""The diagnosis of a run: what is wrong, in order, and one sentence about where the time went.

Findings are ordered by seconds lost, with a cause before what it explains. The seconds of four
kinds cannot be compared with the others':

- A wait that has not ended comes first: until it ends nothing else matters.
- Memory growth costs nothing until it ends the run. It counts as serious.
- Time before the first step does not grow with the run. Below half of its time it never counts as
  serious.
- Waits caused by other jobs on the host are no fault of this one. They come last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from headrace.observe.doctor.epoch_begins import takes_an_iterator_a_batch
from headrace.observe.doctor.evidence import (
    CRITICAL,
    FEWEST_STEPS,
    SERIOUS,
    WARNING,
    Evidence,
    gather_evidence,
)
from headrace.observe.doctor.findings import Bound, Diagnosis, Finding, Remedy, RuleSet, Verdict
from headrace.observe.doctor.remedies import WORTH_IT
from headrace.observe.doctor.rules import RULES
from headrace.observe.whatif.tables import CachedTables, Columns, Tables
from headrace.records.schema import NOT_RECORDED

DATA_RULES = frozenset(
    {
        "cpu-bound-worker",
        "slow-storage",
        "small-files",
        "lock-contention",
        "too-few-workers",
        "oversubscribed-threads",
        "workers-restarted",
        "shallow-prefetch",
        "slow-collate",
        "slow-transfer",
        "cpu-starved-by-ranks",
        "skipped-batches",
        "skipped-samples",
        "slow-sampler",
        "unequal-workers",
        "bound-cores",
        "single-reader",
    }
)
"""Rules that say why data is late: `data-wait` adds nothing to them."""
OTHER_TIME_RULES = frozenset(
    {
        "batch-lists",
        "between-epochs",
        "evaluation",
        "open-wait",
        "passed-over-batches",
        "slow-start",
        "time-outside-model",
    }
)
"""Rules whose findings, and the predictions of their remedies, are about the run's whole time."""
_NEARLY_ALL = 0.9
"""Where steps take this share of the run's time, what holds of them holds of the run."""
_DOMINATES = 0.5
"""Code with this share of the workers' time is the cause, rather than the number of workers."""
_EXPLAINS = 0.6
"""A finding with this share of the seconds of another one explains it."""
_SOLVES = 0.8
"""A remedy that removes this share of the wait for data solves it."""
_WORTH_SHARE = 1.0 - 1.0 / WORTH_IT
"""Who loses less cannot gain 5 % by losing nothing."""
_LITTLE = 0.01
"""A finding that explains less of step time than this is left out."""

_SPECIFIC_FIRST = (
    ("cpu-starved-by-ranks", "cpu-bound-worker"),
    ("cpu-starved-by-ranks", "too-few-workers"),
    ("cpu-starved-by-ranks", "oversubscribed-threads"),  # harmless to one rank
    ("oversubscribed-threads", "cpu-bound-worker"),
    ("slow-storage", "too-few-workers"),
    ("small-files", "too-few-workers"),
    ("lock-contention", "too-few-workers"),
    ("lock-contention", "slow-storage"),
    ("lock-contention", "small-files"),
    ("shallow-prefetch", "too-few-workers"),
    ("single-reader", "cpu-bound-worker"),
    ("single-reader", "too-few-workers"),
    ("single-reader", "slow-storage"),
    ("single-reader", "small-files"),
    ("single-reader", "cpu-starved-by-ranks"),
    ("single-reader", "slow-collate"),
    ("single-reader", "slow-transfer"),
    ("bound-cores", "cpu-bound-worker"),
    ("bound-cores", "too-few-workers"),
    ("bound-cores", "oversubscribed-threads"),
    ("bound-cores", "cpu-starved-by-ranks"),
    ("unequal-workers", "cpu-bound-worker"),
    ("unequal-workers", "slow-storage"),
    ("unequal-workers", "small-files"),
    ("unequal-workers", "slow-collate"),
    ("unequal-workers", "shallow-prefetch"),
    ("slow-sampler", "workers-restarted"),  # each start waits for it
    ("cpu-starved-by-ranks", "sync-bound"),  # late data delays the sync
    ("slow-rank", "cpu-bound-worker"),
    ("device-sync", "step-outliers"),
    # Whatever the script waits for, the GPU is used little; `small-batch` counts all of that.
    ("device-sync", "small-batch"),
    ("blocking-copy", "small-batch"),
    ("sync-bound", "small-batch"),
    ("slow-rank", "small-batch"),
    ("step-outliers", "small-batch"),
)
"""Pairs: if both are found, the first explains the second."""


def rank_findings(findings: Sequence[Finding], evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings worth reporting, worst first."""
    little = _LITTLE * evidence.steps.total_seconds
    relevant = [
        replace(each, share_lost=_share_lost(each, evidence))
        for each in findings
        if each.rule not in DATA_RULES or each.forecast or each.seconds_lost >= little
    ]
    rules = {each.rule for each in relevant if not each.forecast}
    # One rank's wait for data may be reported already.
    explained = _explain_data_wait(relevant) or any(
        each.rule == "slow-rank" and each.evidence["phase"] == "data_wait" for each in relevant
    )
    # The time before training counts for nothing here, and so does what is not worth fixing.
    warned = any(
        each.severity != "info" and each.rule != "slow-start" and is_worth_fixing(each)
        for each in relevant
    )
    left_out = {
        *(("data-wait",) if explained else ()),
        *(("slow-storage",) if "small-files" in rules else ()),
        *(("compute-bound",) if warned else ()),
    }
    ranked = [each for each in relevant if each.rule not in left_out]
    # Whether a rank waits because other jobs fill the host's cores.
    idle = evidence.work is not None and not evidence.workers_busy
    idle = idle and not evidence.iterates_other_loader
    foreign = {"data-wait"} if idle and evidence.others_fill_cores else set()
    ranked.sort(
        key=lambda each: (
            each.rule in foreign,
            _is_last(each),
            -_ranking_seconds(each, evidence),
            each.rule,
        )
    )
    pairs = (*_SPECIFIC_FIRST, *_conditional_pairs(ranked, evidence))
    for _ in ranked:  # moving one may break another pair's order, so repeat until all hold
        for first, second in pairs:
            places = {finding.rule: place for place, finding in enumerate(ranked)}
            if places.get(first, -1) > places.get(second, len(ranked)):
                ranked.insert(places[second], ranked.pop(places[first]))
    ranked.sort(key=_is_last)
    return tuple(ranked)


def _is_last(finding: Finding) -> bool:
    """Return whether a finding stands after those that this run should be changed for."""
    return finding.forecast or not is_worth_fixing(finding)


def _explain_data_wait(findings: Sequence[Finding]) -> bool:
    """Return whether findings say why data is late; starts of workers, only if they are much."""
    waited = next((each.seconds_lost for each in findings if each.rule == "data-wait"), 0.0)
    return any(
        each.rule in DATA_RULES
        and not each.forecast
        and (each.rule != "workers-restarted" or each.seconds_lost >= _EXPLAINS * waited)
        for each in findings
    )


def is_worth_fixing(finding: Finding) -> bool:
    """Return whether a remedy gives at least 5 %.

    Where that is not predicted, no remedy can give more than all the time that is lost.
    """
    speedups = [each.predicted_speedup for each in finding.remedies]
    if any(speedup is not None and speedup >= WORTH_IT for speedup in speedups):
        return True
    is_predicted = bool(speedups) and None not in speedups
    return not is_predicted and (finding.share_lost is None or finding.share_lost >= _WORTH_SHARE)


def _share_lost(finding: Finding, evidence: Evidence) -> float | None:
    """Return the share of time that a finding has cost; None if its cost is no time, or unknown."""
    if finding.rule in {"memory-growth", "open-wait"} or finding.forecast:
        return None
    if finding.rule == "slow-start":  # of all the time, the start included
        share = finding.evidence.get("share_of_all_time")
        return share if isinstance(share, float) else None
    whole_s = evidence.all_steps.total_seconds
    if finding.rule in OTHER_TIME_RULES:
        whole_s = evidence.other_time.wall.run_seconds
    return finding.seconds_lost / whole_s if whole_s > 0 else None


def _ranking_seconds(finding: Finding, evidence: Evidence) -> float:
    serious = SERIOUS * evidence.steps.total_seconds
    if finding.rule == "open-wait":
        return math.inf
    if finding.rule == "memory-growth":
        return serious
    if finding.rule == "slow-start":  # paid once: a longer run would lose no more
        worse = finding.severity not in ("info", "warning")
        most = CRITICAL * evidence.steps.total_seconds if worse else serious
        return min(finding.seconds_lost, most)
    return finding.seconds_lost


def _conditional_pairs(findings: Sequence[Finding], evidence: Evidence) -> list[tuple[str, str]]:
    """Return the pairs that depend on the findings: the first explains the second."""
    by_rule = {finding.rule: finding for finding in findings}
    worker, few = by_rule.get("cpu-bound-worker"), by_rule.get("too-few-workers")
    transfer, collate = by_rule.get("slow-transfer"), by_rule.get("slow-collate")
    slow, sync = by_rule.get("slow-rank"), by_rule.get("sync-bound")
    pairs: list[tuple[str, str]] = []
    # Sync counts as on the rank that waits least, so a much larger part is the network's.
    if slow and sync and slow.seconds_lost >= _EXPLAINS * sync.seconds_lost:
        pairs.append(("slow-rank", "sync-bound"))
    if slow and slow.evidence["phase"] == "data_wait":  # ranks that starve wait unequally long
        pairs.append(("cpu-starved-by-ranks", "slow-rank"))
    if few is not None:
        pairs += _code_and_few_workers(by_rule, few, evidence)
    if transfer and few and transfer.seconds_lost >= _EXPLAINS * few.seconds_lost:
        pairs.append(("slow-transfer", "too-few-workers"))  # or else batches are still late
    if "workers-restarted" in by_rule and takes_an_iterator_a_batch(evidence):
        # No worker makes a batch ahead then, whatever a batch costs.
        others = DATA_RULES - {"workers-restarted", "slow-sampler"}
        pairs += [("workers-restarted", rule) for rule in sorted(others)]
    skips = [rule for rule in ("skipped-batches", "skipped-samples") if rule in by_rule]
    if skips:  # with less to make, the others look different
        explained = (DATA_RULES | {"slow-rank", "sync-bound"}) - set(skips)
        pairs += [(skips[0], rule) for rule in sorted(explained)]
    work = evidence.work
    if work is not None and work.column("send_ns").sum() > work.column("wall_ns").sum():
        pairs.append(("slow-transfer", "cpu-bound-worker"))
        pairs.append(("slow-transfer", "shallow-prefetch"))  # they run out while sent
    if worker is not None and collate is not None and _is_collating(worker, collate):
        pairs.append(("slow-collate", "cpu-bound-worker"))
    return pairs


def _code_and_few_workers(
    by_rule: Mapping[str, Finding], few: Finding, evidence: Evidence
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of the code that workers run and of their number."""
    worker, collate = by_rule.get("cpu-bound-worker"), by_rule.get("slow-collate")
    if worker is not None:
        is_few = _wants_workers_first(worker, few, evidence)
        yield (few.rule, worker.rule) if is_few else (worker.rule, few.rule)
    if collate is not None:
        same = [worker] if worker is not None and _is_collating(worker, collate) else []
        is_few = not (evidence.cores_full or any(map(_dominates, [collate, *same])))
        yield (few.rule, collate.rule) if is_few else (collate.rule, few.rule)


def _wants_workers_first(worker: Finding, few: Finding, evidence: Evidence) -> bool:
    """Return whether the number of workers is wrong first, rather than what they do."""
    if evidence.cores_full:
        return False
    if not _dominates(worker):
        return True
    # If a second process would solve it, that is easier than changing code.
    alone = evidence.loader is not None and evidence.loader.workers <= 1
    return alone and few.seconds_lost >= _SOLVES * evidence.flow_wait_seconds


def _dominates(finding: Finding) -> bool:
    return finding.cause is not None and finding.cause.share >= _DOMINATES


def _is_collating(worker: Finding, collate: Finding) -> bool:
    """Return whether the workers' hottest code is collating, or takes no more time than it."""
    cause, share = worker.cause, collate.evidence["collate_share"]
    if cause is None:
        return True
    here = cause.place != "" and collate.cause is not None and cause.place == collate.cause.place
    larger = isinstance(share, float) and share >= cause.share
    return here or larger or "collate" in cause.function.lower()


_BOUNDS: dict[str, Bound] = {
    "sync-bound": "sync",
    "slow-rank": "rank",
    "blocking-copy": "copy",
    "compute-bound": "compute",
    "data-wait": "data",
    **dict.fromkeys(DATA_RULES, "data"),
}
_EASY = (
    *("workers", "prefetch", "persistent-workers", "threads", "shards", "outliers", "loader"),
    *("equal-shares", "all-cores", "one-iterator", "fewer-batches", "own-samples"),
)
"""Remedies that the sentence prefers: they need little or no code."""
HOST_REMEDIES = frozenset({"auxiliary-hosts"})
"""Remedies that add hosts. The sentence avoids them: they cost money."""
_LEAST_NAMED_SPEEDUP = 1.1
_PHASES = {
    "data_wait": "waiting for data",
    "copy": "copying to the device",
    "forward": "the forward pass",
    "backward": "backward",
    "sync": "gradient sync",
    "optimizer": "the optimizer",
    "other": "outside the model: logging, saving and the like",
}
"""Descriptions of phases, to be read after "60% is"."""


def make_verdict(evidence: Evidence, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict; findings come worst first."""
    steps = evidence.all_steps
    sentence, bound = _sentence(evidence, findings)
    if evidence.unfollowed is not None and len(steps):
        sentence = f"{sentence} {_UNFOLLOWED.format(place=evidence.unfollowed)}"
    return Verdict(
        sentence=sentence,
        bound=bound,
        data_wait_share=steps.data_wait_share if evidence.enough else None,
        steps=len(steps),
        step_ms=float(steps.wall_ns.mean() / 1e6) if len(steps) else None,
        phase_shares=steps.shares if len(steps) else {},
        calibration=evidence.simulator.calibration if evidence.simulator is not None else None,
        device_phase_shares=steps.device.shares if steps.device is not None else {},
        time_shares=_time_shares(evidence),
        start_seconds=evidence.other_time.wall.start_seconds,
        run_seconds=evidence.other_time.wall.run_seconds,
        samples_per_s=steps.samples_per_s if len(steps) else None,
    )


_UNFOLLOWED = (
    "The loader {place} is not followed: its batches reach the training thread in another way than "
    "by a DataLoader of torch's, so what they wait for is not known."
)


def _time_shares(evidence: Evidence) -> dict[str, float]:
    """Return the shares of the run's time, if enough of it is not the steps'."""
    shares = evidence.other_time.wall.shares
    return shares if sum(shares.values()) - shares["steps"] >= SERIOUS else {}


def find_headline(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that the sentence tells; None if nothing is worth fixing."""
    return next(
        (each for each in findings if each.severity != "info" and is_worth_fixing(each)), None
    )


def _sentence(evidence: Evidence, findings: Sequence[Finding]) -> tuple[str, Bound]:
    recorded, headline = evidence.steps.recorded, find_headline(findings)
    if headline is not None and (evidence.enough or headline.rule in OTHER_TIME_RULES):
        return _faulty_sentence(evidence, headline)
    if recorded == 0:
        return "No training step was recorded, so there is nothing to report.", "unknown"
    if not evidence.enough:
        few = f"Too few steps were recorded ({recorded}) to tell"
        return f"{few}: at least {FEWEST_STEPS} are needed after the warm-up.", "unknown"
    return _healthy_sentence(evidence, findings)


def _healthy_sentence(evidence: Evidence, findings: Sequence[Finding]) -> tuple[str, Bound]:
    share = evidence.all_steps.data_wait_share
    waits = f"{share:.1%} of step time waits for data"
    if any(finding.rule == "compute-bound" for finding in findings):
        return f"The accelerator is the limit: {waits}; nothing to fix.", "compute"
    if any(finding.severity != "info" for finding in findings):
        title = next(finding.title for finding in findings if finding.severity != "info")
        return f"Nothing is worth fixing: {waits}; {title}, which costs less than 5 %.", "other"
    if share >= WARNING:
        why = DATA_RULES | {"data-wait"}
        known = next((finding for finding in findings if finding.rule in why), None)
        if known is not None:
            return f"Nothing to fix: {waits}; {known.title}.", "other"
        return f"{waits}; the records do not say why.", "data"
    steps = evidence.all_steps.device or evidence.all_steps
    phase, part = max(steps.shares.items(), key=itemgetter(1))
    return f"Nothing wrong was found: {waits}, {part:.0%} is {_PHASES[phase]}.", "other"


def _faulty_sentence(evidence: Evidence, worst: Finding) -> tuple[str, Bound]:
    bound = _BOUNDS.get(worst.rule, "other")
    text = worst.title[:1].upper() + worst.title[1:]
    if bound == "data" and evidence.loader is not None:
        waits = evidence.all_steps.data_wait_share
        place = evidence.loader.place if evidence.steps.part < 1 else ""
        whose = f", mostly of the loader{place}" if place and place not in worst.title else ""
        text = f"{waits:.0%} of step time waits for data{whose}: {worst.title}"
    steps_share = evidence.steps_share / evidence.steps.part
    of_run = worst.rule in OTHER_TIME_RULES or steps_share >= _NEARLY_ALL
    others = ""
    others_matter = evidence.others_fill_cores or evidence.others_crowd
    if bound == "data" and others_matter and evidence.others_use not in text:
        others = f"; {evidence.others_use}"
    best = _best_remedy(worst)
    if best is not None:
        faster = f"{best.predicted_speedup:.1f} times as fast{best.interval}"
        what = "the run" if of_run else "training"
        text += f"; {change_phrase(best)} {what} would be {faster}"
    return f"{text}{others}.", bound


def main_remedy(findings: Sequence[Finding]) -> Remedy | None:
    """Return the remedy that the sentence names; None if nothing is wrong, or none helps much."""
    worst = find_headline(findings)
    return _best_remedy(worst) if worst is not None else None


def _best_remedy(finding: Finding) -> Remedy | None:
    """Return the best remedy worth naming, preferring easy ones."""
    worth = [
        remedy
        for remedy in finding.remedies
        if remedy.predicted_speedup is not None and remedy.predicted_speedup >= _LEAST_NAMED_SPEEDUP
    ]
    return max(
        worth,
        key=lambda each: (
            each.name in _EASY,
            each.name not in HOST_REMEDIES,
            each.predicted_speedup or 0.0,
        ),
        default=None,
    )


def change_phrase(remedy: Remedy) -> str:
    """Return the change, to be read on its own: with 4 workers, without the blur."""
    change = remedy.change.strip(",")
    return f"without{change.removeprefix('no')}" if change.startswith("no ") else f"with {change}"


def missing_data(events: Columns) -> tuple[str, ...]:
    """Return a sentence for each kind of data that was not recorded, or fault of the recording."""
    by_kind: dict[str, list[tuple[str, float]]] = {kind: [] for kind in _SENTENCES}
    for kind, text, value in zip(events["kind"], events["text"], events["value"], strict=True):
        if kind in by_kind and (kind, text) != ("switched", "on"):
            by_kind[kind].append((str(text), float(value)))
    return tuple(
        _SENTENCES[kind].format(
            lost=sum(count for _, count in rows),
            times="once" if len(rows) == 1 else f"{len(rows)} times",
            who="A process" if len(rows) == 1 else f"{len(rows)} processes",
            first=rows[0][0],
        )
        for kind, rows in by_kind.items()
        if rows
    )


_SENTENCES = {
    "dropped-records": "{lost:,.0f} records were lost: they came faster than they could be "
    "collected.",
    "probe-fault": "Recording failed {times}, and left that out; first: {first}.",
    "recording-stopped": "{who} recorded no more after a hundred faults of the probe.",
    NOT_RECORDED: "{who} that asked for batches left no records, as another process is the same "
    "rank; first: {first}.",
    "device-steps-lost": "{lost:,.0f} steps have no row by the accelerator's clock: the others "
    "stand for them.",
    "switched": "Recording was switched off {times}: what ran then is not in the figures.",
}
"""By the kind of the event; the text of `switched` is "on" or "off"."""


def diagnose(records: Tables, rules: RuleSet = "headrace") -> Diagnosis:
    """Return what is wrong with a run, why, and what would help.

    Args:
        records: The run's tables: `headrace.records.reader.Records`, or anything with `.table`.
        rules: Whose rules are evaluated. The verdict rests on Headrace's own in any case.

    Example:
        diagnose(open_records("runs/base")).verdict.sentence
    """
    tables = records if isinstance(records, CachedTables) else CachedTables(records)
    evidence = gather_evidence(tables)
    checked = {rule: check(evidence) for rule, check in RULES.items()}
    findings = rank_findings(
        [finding for finding in checked.values() if finding is not None], evidence
    )
    verdict = make_verdict(evidence, findings)
    gaps_found = missing_data(evidence.events)
    if rules == "sagemaker":
        from headrace.observe.doctor.debugger_rules import evaluate  # seldom asked for

        return replace(evaluate(tables, verdict), gaps=gaps_found)
    quiet = tuple(rule for rule, finding in checked.items() if finding is None)
    return Diagnosis(verdict=verdict, findings=findings, quiet=quiet, gaps=gaps_found)
