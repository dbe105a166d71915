"""One true sentence about where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from headrace.observe.doctor.evidence import FEWEST_STEPS, WARNING, Evidence
from headrace.observe.doctor.model import Bound, Finding, Remedy, Verdict
from headrace.observe.doctor.ranking import DATA_RULES

_BOUNDS: dict[str, Bound] = {
    "sync-bound": "sync",
    "slow-rank": "rank",
    "blocking-copy": "copy",
    "compute-bound": "compute",
    "data-wait": "data",
    **dict.fromkeys(DATA_RULES, "data"),
}
_EASY = ("workers", "prefetch", "persistent-workers", "threads", "shards", "outliers")
"""Remedies that a sentence names first: they need little or no code."""
_COSTLY = ("auxiliary-hosts",)
"""Remedies that it names last: they cost money."""
_WORTH_SAYING = 1.1
_PHASES = {
    "data_wait": "waiting for data",
    "copy": "copying to the device",
    "forward": "the forward pass",
    "backward": "backward",
    "sync": "gradient sync",
    "optimizer": "the optimizer",
    "other": "outside the model: logging, saving and the like",
}
"""What a phase is, to be read after "60% is"."""


def decide(evidence: Evidence, findings: Sequence[Finding]) -> Verdict:
    """Return the verdict.

    Args:
        evidence: What is known.
        findings: What the rules found, worst first.
    """
    steps = evidence.steps
    sentence, bound = _say(evidence, findings)
    return Verdict(
        sentence=sentence,
        bound=bound,
        data_wait_share=evidence.data_wait_share if evidence.enough else None,
        steps=len(steps),
        step_ms=float(steps.wall_ns.mean() / 1e6) if len(steps) else None,
        phase_shares=steps.shares if len(steps) else {},
        calibration=evidence.simulator.calibration if evidence.simulator is not None else None,
        device_phase_shares=device_shares(evidence),
    )


def device_shares(evidence: Evidence) -> Mapping[str, float]:
    """Return the share of each phase by the accelerator's clock; empty where it is not known."""
    device = evidence.steps.device
    return device.shares if device is not None else {}


def _say(evidence: Evidence, findings: Sequence[Finding]) -> tuple[str, Bound]:
    recorded = evidence.steps.recorded
    if recorded == 0:
        return "No training step was recorded, so there is nothing to tell.", "unknown"
    if not evidence.enough:
        few = f"Too few steps were recorded ({recorded}) to tell"
        return f"{few}: at least {FEWEST_STEPS} are needed after the warm-up.", "unknown"
    wrong = [finding for finding in findings if finding.severity != "info"]
    if wrong:
        return _say_wrong(evidence, wrong[0])
    return _say_fine(evidence, findings)


def _say_fine(evidence: Evidence, findings: Sequence[Finding]) -> tuple[str, Bound]:
    share = evidence.data_wait_share
    waits = f"{share:.1%} of step time waits for data"
    if any(finding.rule == "compute-bound" for finding in findings):
        return f"The accelerator is the limit: {waits}; nothing to fix.", "compute"
    if share >= WARNING:
        why = DATA_RULES | {"data-wait"}
        known = next((finding for finding in findings if finding.rule in why), None)
        if known is not None:
            return f"Nothing to fix: {waits}; {known.title}.", "other"
        return f"{waits}; the records do not say why.", "data"
    phase, part = max((device_shares(evidence) or evidence.steps.shares).items(), key=itemgetter(1))
    return f"Nothing wrong was found: {waits}, {part:.0%} is {_PHASES[phase]}.", "other"


def _say_wrong(evidence: Evidence, worst: Finding) -> tuple[str, Bound]:
    bound = _BOUNDS.get(worst.rule, "other")
    told = _capital(worst.title)
    if bound == "data" and evidence.loader is not None:
        told = f"{evidence.data_wait_share:.0%} of step time waits for data: {worst.title}"
    others = ""
    felt = evidence.others_fill_cores or evidence.others_crowd
    if bound == "data" and felt and evidence.others_use not in told:
        others = f"; {evidence.others_use}"
    return f"{told}{_what_helps(worst)}{others}.", bound


def what_helps_most(findings: Sequence[Finding]) -> Remedy | None:
    """Return the remedy that the sentence names; None where nothing is wrong, or none helps much.

    Args:
        findings: What the rules found, worst first.
    """
    worst = next((finding for finding in findings if finding.severity != "info"), None)
    return _best_remedy(worst) if worst is not None else None


def _best_remedy(finding: Finding) -> Remedy | None:
    """Return the best remedy that is worth saying, the easy ones first."""
    worth = [
        remedy
        for remedy in finding.remedies
        if remedy.predicted_speedup is not None and remedy.predicted_speedup >= _WORTH_SAYING
    ]
    return max(worth, key=_preference, default=None)


def _what_helps(finding: Finding) -> str:
    """Return what the best remedy would give."""
    best = _best_remedy(finding)
    if best is None:
        return ""
    faster = f"{best.predicted_speedup:.1f} times as fast{best.interval}"
    return f"; {given(best)} the run would be {faster}"


def given(remedy: Remedy) -> str:
    """Return what is changed, to be read on its own: with 4 workers, without the blur."""
    change = remedy.change.strip(",")
    return f"without{change.removeprefix('no')}" if change.startswith("no ") else f"with {change}"


def _preference(remedy: Remedy) -> tuple[bool, bool, float]:
    easy, free = remedy.name in _EASY, remedy.name not in _COSTLY
    return easy, free, remedy.predicted_speedup or 0.0


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
