"""Rules about the run's time outside of its steps: evaluation, time between epochs, resumption.

A share of these is of the run's time after start-up, as that is paid once however long a run is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from headrace.observe.doctor.batch_wrappers import batch_wrappers, is_in
from headrace.observe.doctor.epoch_begins import making_first_ns
from headrace.observe.doctor.evidence import SERIOUS, Evidence, rule, severity_of
from headrace.observe.doctor.findings import Cause, Finding, Remedy
from headrace.observe.doctor.hook_samples import hook_part
from headrace.observe.doctor.own_optimizer import without_own_optimizer
from headrace.observe.doctor.remedies import predicted_remedy
from headrace.observe.doctor.rules.accelerator import computes_there
from headrace.observe.doctor.rules.open_wait import check_open_wait
from headrace.observe.doctor.samples_in_rows import samples_in_rows
from headrace.observe.doctor.stack_frames import making_begin
from headrace.observe.doctor.stack_samples import (
    StackSample,
    cut_to_special_line,
    end_ns_of,
    find_cause,
    find_hotspot,
    is_device_sync,
    is_sleep,
    runs_model,
    source_line,
    source_lines_as_run,
)
from headrace.observe.doctor.step_frames import TRAINING_PHASES, frames_in_steps
from headrace.observe.doctor.training_loader import TrainingLoader
from headrace.observe.whatif.prediction import Prediction, interval_width
from headrace.observe.whatif.sampler_time import sampler_ns_of_fetches
from headrace.observe.whatif.tables import Columns, Floats, covered_before

_LEAST_S = 2.0
"""Less than this is not worth a finding, however short the run."""


def _time_saved(
    all_s: float, least_s: float, most_s: float, likely_s: float | None = None
) -> Prediction:
    """Return what it would give if a run took so much less: at least, at most, and most likely.

    Where nothing is known of the last, it is halfway between what the other two give.
    """
    low, high, likely = (
        all_s / max(all_s - min(saved, 0.99 * all_s), 1e-9)
        for saved in (least_s, most_s, likely_s or 0.0)
    )
    return Prediction(
        speedup=(low + high) / 2 if likely_s is None else likely,
        low=max(low - interval_width(low), 0.0),
        high=high + interval_width(high),
        wait_share=0.0,
    )


def _in_or_at(cause: Cause | None) -> str:
    """Return a cause, to be read after a clause: ", most of it in save at train.py:9"."""
    if cause is None or not cause.place:
        return ""
    return f", most of it {'in' if cause.name else 'at'} {cause}"


def _mean_s(rows: Columns, name: str, ranks: float) -> float:
    return float(np.maximum(rows[name], 0).sum()) / ranks / 1e9


_NEARLY_ALL = 0.9
_MOST_EVALUATION = 0.3
"""Evaluation that computes for less than this share of the time is what a careful run does."""


@rule
def check_evaluation(evidence: Evidence) -> Finding | None:
    """Evaluation takes a large part of the run's time, or waits for its data.

    Fires where evaluation takes 2 s or more, and at least 30 % of the run's time after start-up,
    or waits for its loader for at least 10 % of it, in all 2 s or more. The loader that it takes
    longest with is looked at: one without workers makes its batches while the device waits, and
    workers that do not live on are started again for each evaluation. Batches are those of rows
    of kind `eval`; a run without an optimizer has no evaluation: its batches are its steps. Time
    between epochs in which a rank mostly calls modules is evaluation, too: without a loader.
    A rank waits for another one that evaluates, between epochs and where gradients are exchanged,
    so that this counts, too.
    """
    wall, loader = evidence.other_time.wall, evidence.other_time.evaluation_loader
    rows, run_s, seconds = wall.evaluation, wall.run_seconds, wall.seconds("evaluation")
    if rows.count == 0 or run_s <= 0 or seconds < _LEAST_S:
        return None
    ranks = wall.evaluating_ranks
    waited_s = _mean_s(rows, "data_wait_ns", ranks)
    is_much = seconds >= _MOST_EVALUATION * run_s
    waits = waited_s >= SERIOUS * run_s and (is_much or waited_s >= _LEAST_S)
    if not (waits or is_much):
        return None
    phases = ("data_wait",) if waits else ("forward", "copy", "other")
    seen = samples_in_rows(evidence.other_time.samples, rows, phases)
    cause = find_cause(seen if waits else _special_lines(evidence, seen))
    if waits and loader is not None and cause is not None:
        cause = loader.calling(cause)
    share = f"evaluation takes {seconds / run_s:.0%} of the run's time"
    lost_s = waited_s if waits else seconds / 2
    if waits and loader is not None:
        own_s = _mean_s(rows.having(loader=loader.number), "data_wait_ns", ranks)
        why, remedies = _evaluation_waits(evidence, loader, own_s)
        whole = own_s >= _NEARLY_ALL * waited_s
        whom = f"the loader{loader.place}, {why}"
        if not whole:
            whom = f"its data, {own_s / run_s:.0%} for {whom}"
        title = f"{share}, {waited_s / run_s:.0%} waiting for {whom}"
    else:
        title = f"{share}, {seconds:.0f} of {run_s:.0f} s{_in_or_at(cause)}"
        remedies = (_seldom(run_s, seconds),)
    return evidence.finding(
        title,
        lost_s,
        {
            "evaluation_share": seconds / run_s,
            "evaluation_seconds": seconds,
            "data_wait_seconds": waited_s,
            "batches": int(rows["batches"].sum()),
            "workers": None if loader is None else loader.workers,
        },
        cause=cause,
        remedies=remedies,
        severity=severity_of(lost_s / run_s),
    )


def _seldom(all_s: float, seconds: float) -> Remedy:
    prediction = _time_saved(all_s, seconds / 2, seconds / 2)
    how = "Evaluate every second time, or on half of the samples; larger batches need no gradients."
    return predicted_remedy("evaluation", "half the evaluation", prediction, how)


def _evaluation_waits(
    evidence: Evidence, loader: TrainingLoader, waited_s: float
) -> tuple[str, tuple[Remedy, ...]]:
    """Return why evaluation waits for its loader, to be read after it, and what would help."""
    wall = evidence.other_time.wall
    first_s, iterations = _starting_waits_s(evidence)
    if loader.workers and not loader.persistent and iterations > 1 and first_s >= waited_s / 2:
        why = (
            f"whose workers are started again for each of {iterations} evaluations: "
            f"{first_s / iterations:.1f} s each"
        )
        # One start is needed in any case.
        gain = _time_saved(wall.run_seconds, first_s / 2, first_s * (1 - 1 / iterations))
        advice = loader.advice("persistent_workers", "True")
        how = f"{advice} Construct it once. Half to all of the wait for their start is taken to "
        how += "go."
        overrides = loader.overridden("persistent_workers", 1) if loader.constructed == 1 else ()
        remedy = predicted_remedy("persistent-workers", "persistent workers", gain, how, overrides)
        return why, (remedy,)
    why = "which has no workers"
    if loader.workers:
        plural = "s do" if loader.workers > 1 else " does"
        why = f"whose {loader.workers} worker{plural} not keep up"
    return why, _workers_for_evaluation(evidence, loader, waited_s)


def _starting_waits_s(evidence: Evidence) -> tuple[float, int]:
    """Return a rank's seconds of wait for workers of evaluation to start, and its iterations.

    The first batch of an iteration is made in any case, and so is its sampler's order.
    """
    wall, loader = evidence.other_time.wall, evidence.other_time.evaluation_loader
    if loader is None:
        return 0.0, 0
    first = evidence.fetches.having(loader=loader.number, batch=0, ended=0)
    made, starting_ns, iterations = evidence.other_time.evaluation_batches, 0.0, 0
    made = made.where(made["worker"] >= 0)
    for rank in map(int, np.unique(first["rank"])):
        rows = wall.evaluation.having(loader=loader.number, rank=rank)
        mine, own = first.having(rank=rank), made.having(rank=rank)
        order = np.argsort(mine["start_ns"], kind="stable")
        had_ns, sampler_ns = mine["start_ns"][order], sampler_ns_of_fetches(mine)[order]
        starts, ends = rows["start_ns"], rows["start_ns"] + rows["wall_ns"]
        number = np.searchsorted(had_ns, starts)
        begins = number < np.searchsorted(had_ns, ends)
        for place in np.flatnonzero(begins):
            begin_ns, wall_ns = int(starts[place]), int(rows["wall_ns"][place])
            other_ns = making_first_ns(begin_ns, wall_ns, mine, own) + sampler_ns[number[place]]
            starting_ns += max(float(rows["data_wait_ns"][place]) - other_ns, 0.0)
        iterations += int(begins.sum())
    ranks = wall.evaluating_ranks
    return starting_ns / ranks / 1e9, round(iterations / ranks)


def _workers_for_evaluation(
    evidence: Evidence, loader: TrainingLoader, waited_s: float
) -> tuple[Remedy, ...]:
    """Return what so many workers would give that evaluation need not wait, if cores allow it."""
    work, wall = evidence.other_time.evaluation_work, evidence.other_time.wall
    rows = wall.evaluation.having(loader=loader.number)
    batches = max(float(rows["batches"].sum()), 1.0)
    if work is None or (loader.workers and work.cpu_share < 0.5):
        return ()
    making_ns = float(work.column("wall_ns").mean())
    own_ns = max(float((rows["wall_ns"] - rows["data_wait_ns"]).sum()) / batches, 1.0)
    most = max(int(min(evidence.host.cores / evidence.host.ranks, 32.0)), 1)
    count = int(min(max(np.ceil(making_ns / own_ns), 1), most))
    if count <= loader.workers:
        return ()
    left_s = max(making_ns / count - own_ns, 0.0) * batches / wall.evaluating_ranks / 1e9
    saved_s = max(waited_s - left_s, 0.0)
    before = f"instead of {loader.workers or 'none'}"
    change = f"{count} worker{'s' if count > 1 else ''} {before} for evaluation"
    advice = loader.advice("num_workers", count, persistent_workers="True")
    how = f"{advice} Half to all of the wait that such workers leave out is taken to go."
    gain = _time_saved(wall.run_seconds, saved_s / 2, saved_s)
    overrides = loader.overridden("num_workers", count)
    return (predicted_remedy("workers", change, gain, how, overrides),)


@rule
def check_between_epochs(evidence: Evidence) -> Finding | None:
    """Time passes between epochs, or after the last one: saving, plotting, uploading.

    Fires where rows of kind `between`, from an epoch's end to the next batch, take at least 10 %
    of the run's time after start-up, in all 2 s or more. The line is the one seen most then, waits
    for other ranks left out.
    """
    wall = evidence.other_time.wall
    seconds, run_s = wall.seconds("between"), wall.run_seconds
    if seconds < max(SERIOUS * run_s, _LEAST_S):
        return None
    rows = wall.between
    phases = ["other", "data_wait"]
    if 2 * int(rows["forward_ns"].sum()) >= int(rows["wall_ns"].sum()):  # there is no loader
        phases.append("forward")
    seen = samples_in_rows(evidence.other_time.samples, rows, phases)
    cause = find_cause(_special_lines(evidence, _own_work(seen)))
    share = seconds / run_s
    # Without it nearly all of its time goes; in the background it may take some from the steps.
    gain = _time_saved(run_s, seconds / 2, seconds, likely_s=_NEARLY_ALL * seconds)
    how = "Do it less often, or in the background. At least half of it is taken to go."
    when = "between epochs"
    if _part_after_training(evidence) >= _MOSTLY * seconds:
        when = "after the last step"
    name = cause.name if cause is not None and not _runs_training(evidence, cause) else ""
    change = f"no {name} {when}" if name else f"nothing {when}"
    return evidence.finding(
        f"{share:.0%} of the run's time, {seconds:.0f} of {run_s:.0f} s, passes {when}"
        f"{_in_or_at(cause)}",
        seconds,
        {
            "share_of_time": share,
            "seconds": seconds,
            "times": round(rows.count / max(wall.ranks, 1)),
            "longest_seconds": float(rows["wall_ns"].max()) / 1e9,
        },
        cause=cause,
        remedies=(predicted_remedy("between-epochs", change, gain, how),),
        severity=severity_of(share),
    )


_COLLECTIVE = re.compile(r"^torch/distributed/distributed_c10d\.py:")
_LEAST_OWN = 0.1


def _own_work(samples: Sequence[StackSample]) -> Sequence[StackSample]:
    """Return samples without those that wait for other ranks, unless hardly any does else."""
    own = [sample for sample in samples if not sample.passes(_COLLECTIVE)]
    all_ns = sum(sample.wall_ns for sample in samples)
    return own if sum(sample.wall_ns for sample in own) >= _LEAST_OWN * all_ns else samples


_MOSTLY = 0.8


def _part_after_training(evidence: Evidence) -> float:
    """Return the seconds of time between epochs that follow a rank's last step."""
    rows, steps, after_ns = evidence.other_time.wall.between, evidence.steps.rows, 0
    for rank in map(int, np.unique(rows["rank"])):
        last_ns = int(steps["start_ns"][steps["rank"] == rank].max(initial=0))
        mine = rows.having(rank=rank)
        after_ns += int(mine["wall_ns"][mine["start_ns"] > last_ns].sum())
    return after_ns / max(evidence.other_time.wall.ranks, 1) / 1e9


def _runs_training(evidence: Evidence, cause: Cause) -> bool:
    """Return whether the function of a cause also holds the training loop, as `main` may."""
    return any(
        (frame.file, frame.function) == (cause.file, cause.function.partition(" > ")[0])
        for sample in evidence.rank_samples_in(TRAINING_PHASES)
        for frame in sample.frames
    )


def _special_lines(evidence: Evidence, samples: Iterable[StackSample]) -> list[StackSample]:
    """Return samples without the inner lines that steps run, too, such as the model's.

    What has no other lines is left out: seconds hold steps, too.
    """
    in_steps = frames_in_steps(evidence.rank_samples, TRAINING_PHASES)
    cut = [cut_to_special_line(sample, in_steps) for sample in samples]
    return [sample for sample in cut if sample.own_frame not in in_steps] or cut


@rule
def check_passed_over_batches(evidence: Evidence) -> Finding | None:
    """Batches are fetched and passed over before training goes on, as by a resumed run.

    Fires where that takes at least 5 % of the run's time, 2 s or more: ten batches and more that a
    loader's iteration began with and that were not trained on, while later ones of it were (fewer
    are those that a library fetches ahead); and whole iterations before the first step whose
    batches the script only asked for. That happens once, as the start-up does, so the remedy is
    predicted of both with the rest.
    """
    wall, loader = evidence.other_time.wall, evidence.other_time.passed_over_loader
    passed, run_s = wall.passed_over, wall.run_seconds
    seconds = wall.seconds("passed_over")
    if passed is None or seconds < max(0.05 * run_s, _LEAST_S):
        return None
    place = loader.place if loader is not None else ""
    share = seconds / run_s
    count = round(int(passed.batches.sum()) / max(wall.ranks, 1))
    how = (
        f"Give {loader.named if loader is not None else 'the DataLoader'} a sampler that begins "
        "where training goes on, as accelerate's skip_first_batches and torchdata's "
        "StatefulDataLoader do, or use headrace.DataLoader, whose load_state_dict makes nothing "
        "again."
    )
    return evidence.finding(
        f"{count:,} batches of the loader{place} were fetched and passed over, which took "
        f"{seconds:.0f} s, {share:.0%} of the run's time",
        seconds,
        {"batches": count, "seconds": seconds, "share_of_time": share},
        cause=Cause(file=loader.file, line=loader.line, share=share) if place and loader else None,
        remedies=(
            predicted_remedy(
                "later-start",
                "a sampler that begins later",
                _time_saved(wall.start_seconds + run_s, seconds * 0.9, seconds),
                how,
            ),
        ),
        severity=severity_of(share),
    )


@rule
def check_batch_lists(evidence: Evidence) -> Finding | None:
    """Batches are fetched before the first of them is trained on: `for batch in list(loader)`.

    Fires where that takes at least 5 % of the run's time, 2 s or more: all of an epoch, or ten and
    more at a time, where several steps follow that hold no batch. Nobody asks for batches while the
    model trains then. Batches that are fetched once and kept for all epochs are start-up.
    """
    wall, loader = evidence.other_time.wall, evidence.other_time.batch_lists_loader
    kept, run_s = wall.batch_lists, wall.run_seconds
    seconds = wall.seconds("batch_lists")
    if kept is None or seconds < max(0.05 * run_s, _LEAST_S):
        return None
    share, place = seconds / run_s, loader.place if loader is not None else ""
    count = round(int(kept.batches.sum()) / max(wall.ranks, 1))
    cause = find_cause(_asking_lines(evidence))
    if cause is None and loader is not None and place:
        cause = Cause(file=loader.file, line=loader.line, share=share)
    how = "Iterate over the loader itself, not over a list of its batches"
    if loader is not None and loader.workers == 0:
        how += f". {loader.advice('num_workers', 1)} They are then made while the model trains"
    overlapped_s = min(seconds, max(wall.seconds("steps"), 0.0))
    gain = _time_saved(run_s, overlapped_s / 2, overlapped_s)
    where = f" in {cause}" if cause is not None and cause.name else ""
    return evidence.finding(
        f"{count:,} batches of the loader{place} were fetched{where} before the first of them was "
        f"trained on, which took "
        f"{seconds:.0f} s, {share:.0%} of the run's time",
        seconds,
        {"batches": count, "seconds": seconds, "share_of_time": share},
        cause=cause,
        remedies=(
            predicted_remedy(
                "overlap",
                "batches that are made while the model trains",
                gain,
                f"{how}. Half of the shorter of the two to all of it is taken to go.",
            ),
        ),
        severity=severity_of(share),
    )


def _asking_lines(evidence: Evidence) -> list[StackSample]:
    """Return samples of ranks as they fetch batches that are kept, up to the line that asks."""
    kept = evidence.other_time.wall.batch_lists
    if kept is None:
        return []
    spans = (kept.start_ns.astype(np.float64), (kept.start_ns + kept.wall_ns).astype(np.float64))
    found = []
    for sample in evidence.other_time.samples:
        begin = making_begin(sample.frames)
        starts = sample.rows["start_ns"].astype(np.float64)
        inside = covered_before(*spans, end_ns_of(sample.rows).astype(np.float64))
        inside = inside - covered_before(*spans, starts)
        if begin and sample.phase == "data_wait" and not sample.is_of_worker and inside.any():
            found.append(replace(sample, frames=sample.frames[:begin]))
    return found


@rule
def check_time_outside_model(evidence: Evidence) -> Finding | None:
    """Each step spends time outside the model: logging, plotting, metrics, saving.

    Fires where the usual step is outside data wait, copies, backward, sync, the optimizer and the
    model for at least 10 % of the run's time after start-up, in lines that run no part of torch
    and do not wait for the device. What only some steps do is `step-outliers`. Before backward,
    and in inference after each batch, the model's own code counts as model, and so do lines that
    may be its: only lines that call another library count there, those that sleep or are in files
    that say nothing of tensors, where modules are seen to run besides, and all of a function that
    hands the loader's batches on. Hooks on tensors and modules that torch calls in forward and
    backward, such as for histograms of gradients, are outside, too, but for what they do by torch's
    own functions, and where they sleep. Where none of torch's optimizers steps, code that writes
    parameters by their gradients is the script's own, and no part of this.
    A script of which no step was recorded, such as inference without a loader, has the line outside
    the model named that it was at longest.
    """
    steps = evidence.steps
    if steps.recorded == 0:
        return _finding_without_steps(evidence)
    if not evidence.enough or evidence.loader is None:
        return None
    after, after_ns = _outside_in_phase(evidence, "other", lambda _: True)
    before, before_ns = _outside_in_phase(evidence, "forward", _forward_outside(evidence))
    hooks, hooks_ns = _in_hooks(evidence)
    spent = after_ns + before_ns + hooks_ns
    share = float(spent.sum() / max(steps.wall_ns.sum(), 1.0)) * evidence.steps_share
    model = [
        sample
        for sample in evidence.rank_samples_in(TRAINING_PHASES)
        if runs_model(sample) and hook_part(sample) is None
    ]
    usual = {frame for sample in model for frame in sample.frames}
    cause = find_cause(cut_to_special_line(sample, usual) for sample in (*after, *before, *hooks))
    if cause is None or share < SERIOUS:
        return None
    seconds = share * evidence.other_time.wall.run_seconds
    how = "Do it every so many steps, or in the background. Nine tenths of it are taken to go."
    run_s = evidence.other_time.wall.run_seconds
    gain = _time_saved(run_s, seconds / 2, seconds, likely_s=_NEARLY_ALL * seconds)
    return evidence.finding(
        f"{share:.0%} of the run's time passes outside the model in each step{_in_or_at(cause)}",
        share / max(evidence.steps_share, 1e-9) * steps.total_seconds,
        {"share_of_time": share, "milliseconds_a_step": float(np.median(spent)) / 1e6},
        cause=cause,
        remedies=(predicted_remedy("outside-model", "no such lines in a step", gain, how),),
        severity=severity_of(share),
    )


def _finding_without_steps(evidence: Evidence) -> Finding | None:
    """Return where a script passes its time that asks for no batch and trains nothing."""
    if check_open_wait(evidence) is not None:
        return None
    seen = evidence.other_time.samples
    outside = [sample for sample in seen if not runs_model(sample)]
    total_ns = sum(sample.wall_ns for sample in seen)
    usual = {frame for sample in seen if runs_model(sample) for frame in sample.frames}
    place = find_hotspot([cut_to_special_line(each, usual) for each in outside], total_ns)
    if place is None or total_ns < _LEAST_S * 1e9 or place.share < SERIOUS:
        return None
    cause, share = place.cause(), place.share
    where = f"{'in' if cause.name else 'at'} {cause}"
    return evidence.finding(
        f"no step was recorded; {share:.0%} of {total_ns / 1e9:.0f} s passes {where}",
        share * total_ns / 1e9,
        {"share_of_time": share, "seconds": total_ns / 1e9},
        cause=cause,
        severity="warning",  # it may be no training at all
    )


def _outside_in_phase(
    evidence: Evidence, phase: str, is_outside: Callable[[StackSample], bool]
) -> tuple[list[StackSample], Floats]:
    """Return samples of a phase outside the model, and the usual time of each step there."""
    spent = evidence.steps.phase_ns(phase)
    usual = np.minimum(spent, 2.0 * float(np.median(spent)))
    inside = evidence.rank_samples_in((phase,))
    all_phases = ("data_wait", *TRAINING_PHASES, "other")
    wrappers = batch_wrappers(evidence.rank_samples_in(all_phases))
    outside = [
        sample
        for sample in inside
        if not _waits_for_device(evidence, sample)
        and (is_in(sample, wrappers) or (not runs_model(sample) and is_outside(sample)))
    ]
    if not evidence.steps.phase_ns("optimizer").any():  # none of torch's
        outside = without_own_optimizer(outside)
    return outside, usual * _share_of_phase(outside, inside, float(spent.sum()))


_SEEN_WELL = 0.5
"""Where samples cover less of a phase's time, what they do not show is the model's."""


def _share_of_phase(
    some: Sequence[StackSample], seen: Sequence[StackSample], phase_ns: float
) -> float:
    """Return the share of a phase's time that some of its samples stand for, 0 to 1."""
    seen_ns = sum(sample.wall_ns for sample in seen)
    whole_ns = seen_ns if seen_ns >= _SEEN_WELL * phase_ns else phase_ns
    return sum(sample.wall_ns for sample in some) / max(whole_ns, 1.0)


def _waits_for_device(evidence: Evidence, sample: StackSample) -> bool:
    return is_device_sync(sample) and not computes_there(evidence, [sample])


def _in_hooks(evidence: Evidence) -> tuple[list[StackSample], Floats]:
    """Return samples of hooks within forward and backward, and the usual time of a step there."""
    steps, found = evidence.steps, []
    spent = np.zeros(len(steps))
    for phase in ("forward", "backward"):
        inside = evidence.rank_samples_in((phase,))
        hooks = [each for each in map(hook_part, inside) if each is not None]
        # A hook that sleeps stands for the device that the module would run on.
        hooks = [
            each for each in hooks if not (_waits_for_device(evidence, each) or is_sleep(each))
        ]
        phase_ns = steps.phase_ns(phase)
        share = _share_of_phase(hooks, inside, float(phase_ns.sum()))
        spent += np.minimum(phase_ns, 2.0 * float(np.median(phase_ns))) * share
        found += hooks
    return found, spent


_LEAST_MODEL = 0.2
"""Where less of the time before backward is in torch's own frames, other lines may be the model."""
_NATIVE_CALL = re.compile(
    r"\b(np|numpy|cv2|scipy|ndimage|PIL|Image|json|pickle|zlib|gzip|pd|pandas|plt|csv)\.\w"
    r"|\b(open|print)\(|\.(write|writerow|savefig)\("
)
"""Lines that call native code of other libraries, which has no frames of its own."""
_OTHER_MODEL = re.compile(r"^(onnxruntime|tensorrt|openvino|triton|tvm|jax|deepspeed|apex)/")
"""Libraries that run models otherwise than by torch's modules."""


_COMPUTES_TENSORS = re.compile(r"torch|tensor|jax|cuda|triton|onnx|\bF\.|nn\.", re.IGNORECASE)
"""What a file says that may hold parts of a model; native code of torch's has no frames."""


def _is_of_other_file(sample: StackSample) -> bool:
    """Return whether a sample is in a file of the user's, as it ran, in which no model can be."""
    frame = sample.own_frame
    lines = source_lines_as_run(frame.file, sample.ran_since_s) if frame.is_user else []
    return bool(lines) and not any(map(_COMPUTES_TENSORS.search, lines))


def _forward_outside(evidence: Evidence) -> Callable[[StackSample], bool]:
    """Return what tells that a sample before backward is none of the model, which may be any code.

    A script may also sleep in place of a model: so that counts only besides one. So does code of
    files that say nothing of tensors, such as one that encodes the masks of a prediction.
    """
    forward = evidence.rank_samples_in(("forward",))
    model_ns = sum(sample.wall_ns for sample in forward if runs_model(sample))
    has_model = model_ns >= _LEAST_MODEL * sum(sample.wall_ns for sample in forward) > 0

    def is_outside(sample: StackSample) -> bool:
        if sample.passes(_COLLECTIVE) or sample.passes(_OTHER_MODEL):
            return False
        if is_sleep(sample):
            return has_model
        if has_model and _is_of_other_file(sample):
            return True
        return bool(sample.calls) or _NATIVE_CALL.search(source_line(sample)) is not None

    return is_outside
