"""The scripts, and for each what is changed: how that is predicted, and how it is applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import Evidence
from headrace.observe.doctor.findings import Cause
from headrace.observe.whatif.prediction import PipelineChange, Prediction, Simulator, with_workers
from headrace.records.reader import Records


@dataclass(frozen=True, kw_only=True)
class Remedied:
    """A remedy, how it is predicted and how it is applied.

    Attributes:
        name: What is changed.
        predict: From the evidence of the run as it stands to the prediction.
        flags: Of `headrace run`.
        arguments: Of the script.
        data: The photographs that the script reads instead: see Case.
    """

    name: str
    predict: Callable[[Evidence, Records], Prediction | None]
    flags: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    data: str = ""

    @property
    def change(self) -> str:
        """How it is applied, in words of the command line."""
        return " ".join((*self.flags, *self.arguments, *(["--" + self.data] if self.data else [])))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script as it stands, and its remedies.

    Attributes:
        script: Its name.
        remedies: What is changed, each alone.
        arguments: Of the script.
        data: Which of the photographs in `bucket.py` it reads, as its flag is called: `objects`,
            `files` or `shards`; "" where it makes its own data.
    """

    script: str
    remedies: tuple[Remedied, ...]
    arguments: tuple[str, ...] = ()
    data: str = ""

    @property
    def name(self) -> str:
        """What to call it."""
        return " ".join((self.script, *self.arguments))


def workers(count: int) -> Remedied:
    """So many workers."""
    return Remedied(
        name=f"{count} workers",
        predict=lambda evidence, _: with_workers(simulator(evidence), count),
        flags=("--apply", f"num_workers={count}"),
    )


def prefetch(count: int) -> Remedied:
    """So many batches ahead, a worker."""
    return Remedied(
        name=f"{count} batches ahead",
        predict=lambda evidence, _: simulator(evidence).predict(
            PipelineChange(prefetch_factor=count)
        ),
        flags=("--apply", f"prefetch_factor={count}"),
    )


def twice_as_fast(slow: str) -> Remedied:
    """The slow part in half the time; predicted by the doctor, if it blames that part."""
    return Remedied(
        name="the slow part twice as fast",
        predict=lambda _, records: proposed(records, "faster-code", blamed=slow),
        arguments=("--effort", "0.5"),
    )


def without(slow: str, name: str = "without the slow part", remedy: str = "move-code") -> Remedied:
    """None of the slow part; predicted likewise."""
    return Remedied(
        name=name,
        predict=lambda _, records: proposed(records, remedy, blamed=slow),
        arguments=("--effort", "0"),
    )


def persistent() -> Remedied:
    """Workers that live on."""
    return Remedied(
        name="persistent workers",
        predict=lambda _, records: proposed(records, "persistent-workers"),
        flags=("--apply", "persistent_workers=on"),
    )


def loader(count: int) -> Remedied:
    """A loader for a script without one, where the doctor asks for just as many workers."""
    change = f"a DataLoader with {count} worker{'s' if count > 1 else ''}"
    return Remedied(
        name=change,
        predict=lambda _, records: proposed(records, "loader", change=change),
        arguments=("--no-by-hand", "--workers", str(count)),
    )


def read_from(data: str, name: str) -> Remedied:
    """The photographs from a store that is far away."""
    return Remedied(
        name=name,
        predict=lambda _, records: proposed(records, "shards", blamed="read"),
        data=data,
    )


def simulator(evidence: Evidence) -> Simulator:
    """Return the measured pipeline's simulator."""
    if evidence.simulator is None:
        raise SystemExit("the run has no loader to simulate")
    return evidence.simulator


def proposed(
    records: Records, remedy: str, *, blamed: str = "", change: str = ""
) -> Prediction | None:
    """Return what the doctor predicts for a remedy, where it proposes it.

    Args:
        records: Of the run as it stands.
        remedy: The doctor's name for it.
        blamed: The function, class or transform that it must blame: there the script changes.
        change: What it must propose to the word; "": any.
    """
    for finding in diagnose(records).findings:
        if blamed and not is_blamed(blamed, finding.cause):
            continue
        for each in finding.remedies:
            if each.name != remedy or each.predicted_speedup is None:
                continue
            if change in {"", each.change}:
                return Prediction(
                    speedup=each.predicted_speedup,
                    low=each.low or each.predicted_speedup,
                    high=each.high or each.predicted_speedup,
                    wait_share=0.0,
                )
    return None


def is_blamed(name: str, cause: Cause | None) -> bool:
    """Whether a cause is a function, class or transform of this name, or lies in it."""
    if cause is None:
        return False
    return name in {*cause.function.split(" > ")[0].split("."), *cause.transform.split(".")}


CASES = (
    Case(script="photos", arguments=("--workers", "0"), remedies=(workers(1), workers(2))),
    Case(script="photos", arguments=("--workers", "1"),
         remedies=(workers(2), prefetch(6), twice_as_fast("Sharpen"), without("Sharpen"))),
    Case(script="photos", arguments=("--workers", "2", "--step-ms", "10"),
         remedies=(twice_as_fast("Sharpen"), without("Sharpen"))),
    Case(script="distant", arguments=("--workers", "0"),
         remedies=(workers(1), workers(2), workers(4))),
    Case(script="distant", arguments=("--workers", "1"),
         remedies=(workers(2), workers(3), workers(4), workers(6), prefetch(8))),
    Case(script="distant", arguments=("--workers", "2"), remedies=(workers(3), workers(4))),
    Case(script="distant", arguments=("--by-hand", "--step-ms", "24"), remedies=(loader(2),)),
    Case(script="stream", arguments=("--workers", "0"),
         remedies=(twice_as_fast("tokenize"), without("tokenize"))),
    Case(script="stream", arguments=("--workers", "1"),
         remedies=(twice_as_fast("tokenize"), without("tokenize"), prefetch(4))),
    Case(script="uneven", arguments=("--workers", "2"),
         remedies=(prefetch(4), prefetch(8), workers(4), workers(8))),
    Case(script="epochs", arguments=("--workers", "2"), remedies=(persistent(),)),
    Case(script="epochs", arguments=("--workers", "4"), remedies=(persistent(),)),
    Case(script="padded", arguments=("--workers", "0"), remedies=(workers(1), workers(2))),
    Case(script="padded", arguments=("--workers", "1"),
         remedies=(workers(2), without("collate_fn", "padded by torch"))),
    Case(script="objects", arguments=("--workers", "2"), data="objects",
         remedies=(workers(4), workers(6), read_from("files", "a copy on local disk"),
                   read_from("shards", "shards in the bucket"))),
    Case(script="saving", remedies=(without("saved", "no checkpoints", "outliers"),)),
)  # fmt: skip
"""Every case; over thirty pairs in all."""
