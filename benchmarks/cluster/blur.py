"""The reference mix once more, with real work: ten Gaussian blurs a sample, cores that are full.

    sudo python benchmarks/cluster/blur.py

The GPU host is a quarter of core 0 of this machine, the auxiliary host all of core 1: four times
its cores, as 16 are of 4. The device takes 2.25 times what the GPU host's own cores make, as in the
mix of mix.py. Memory that is freed is kept for the next sample in all of them, as --offload's
workers do by themselves and torch's where two variables say so: each blur pays for fresh pages
otherwise, and the hosts would not be all that differs. Writes a section of docs/offload.md: what a
sample costs at the reference's prices, and what was predicted of the auxiliary host from the run
without it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from confined import confining  # noqa: E402
from forecasts import forecast_from  # noqa: E402
from launches import SCRIPTS, printed_epochs_live, rate, share  # noqa: E402
from prices import BIG_HOST, CELLS, CPU_HOST, GPU_HOST, PRICE_NOTE, Dollars, for_a_dollar  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from headrace.observe.whatif.prediction import Prediction  # noqa: E402
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
IMAGES = HERE.parents[1] / "examples" / "ray_vit" / "images.py"
BATCH, EPOCH_S, EPOCHS = 4, 15.0, 3
GPU_SHARE, RATIO, DEVICE = 0.25, 4, 2.25
KEEP_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 28))
LONE_RATE = 10.0  # samples a second of the GPU host's cores, about: only for the epochs' length


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One job.

    Attributes:
        name: For the table.
        share: Of core 0, for the host that trains.
        workers: Its workers.
        auxiliary: Workers on the auxiliary host; 0: there is none.
        dollars: An hour of the hosts.
    """

    name: str
    share: float
    workers: int
    auxiliary: int
    dollars: Dollars


SMALL = Case(name="GPU host", share=GPU_SHARE, workers=1, auxiliary=0, dollars=GPU_HOST)
MIXED = Case(name="... and an auxiliary host with 4 times its cores", share=GPU_SHARE, workers=1,
             auxiliary=RATIO, dollars=GPU_HOST + CPU_HOST)  # fmt: skip
BIG = Case(name="GPU host with 4 times the cores instead", share=1.0, workers=RATIO, auxiliary=0,
           dollars=BIG_HOST)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a job: its epochs, and the forecast for an auxiliary host with it."""

    epochs: list[dict[str, Any]]
    forecast: Prediction | None


def main() -> None:
    """Measure and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    found: dict[str, list[Ran]] = {"as usual": [], "free": [], "free mixed": []}
    for number in range(options.rounds):
        found["as usual"].append(run_undisturbed(lambda _: run(SMALL, 0.0, keeps_memory=False)))
        free = run_undisturbed(lambda _: run(SMALL, 0.0))
        found["free"].append(free)
        device = DEVICE * rate(free.epochs)
        found["free mixed"].append(run_undisturbed(lambda _: run(MIXED, 0.0)))
        for case in (SMALL, MIXED, BIG):
            ran = run_undisturbed(partial(run_again, case, device))
            found.setdefault(case.name, []).append(ran)
        rates = {name: f"{rate(runs[-1].epochs):.2f}" for name, runs in found.items()}
        print(f"round {number + 1}: device {device:.2f}: {rates}", flush=True)
    publish(found, dry=options.dry)


def run_again(case: Case, device_rate: float, _: int) -> Ran:
    """Run it, whichever try it is."""
    return run(case, device_rate)


def run(case: Case, device_rate: float, *, keeps_memory: bool = True) -> Ran:
    """Run the script on emulated hosts; every epoch after the first counts.

    Args:
        case: The hosts.
        device_rate: Samples a second that the device takes; 0: any.
        keeps_memory: Whether torch's workers keep the memory that they free.
    """
    about = LONE_RATE * (case.share / GPU_SHARE + (RATIO if case.auxiliary else 0))
    about = min(about, DEVICE * LONE_RATE) if device_rate else about
    samples = int(about * EPOCH_S) // BATCH * BATCH
    with tempfile.TemporaryDirectory() as temporary, confining(case.share, "blur.py") as confine:
        folder = Path(temporary)
        for file in (SCRIPTS / "blur.py", SCRIPTS / "device.py", IMAGES):
            shutil.copy(file, folder)
        command = [sys.executable, "-m", "headrace.cli.main", "run", "--engine", "ray"]
        command += ["--run-dir", f"{folder}/run", "--group", f"gpu=1:cpus={case.workers}"]
        if case.auxiliary:
            command += ["--group", f"cpu=1:cpus={case.auxiliary}", "--offload", "cpu"]
        command += [str(folder / "blur.py"), "--samples", str(samples), "--epochs", str(EPOCHS)]
        command += ["--workers", str(case.workers), "--device-rate", str(device_rate)]
        variables = KEEP_MEMORY if keeps_memory else {}
        epochs = printed_epochs_live(command, confine, OMP_NUM_THREADS="1", **variables)
        return Ran(
            epochs,
            forecast_from(folder / "run", RATIO) if case is SMALL and not device_rate else None,
        )


def publish(found: dict[str, list[Ran]], *, dry: bool) -> None:
    """Print the tables, and write them to the page."""
    speeds = {name: [rate(each.epochs) for each in runs] for name, runs in found.items()}
    flags = " and ".join(f"`{name}={value}`" for name, value in KEEP_MEMORY.items())
    lines = [
        PRICE_NOTE,
        "",
        f"Workers keep freed memory for reuse: those of `--offload` always do, torch's by {flags}.",
        "",
        f"| hosts | samples/s | CPU | device | s a step | {CELLS} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in (SMALL, MIXED, BIG):
        speed, runs = median(speeds[case.name]), [each.epochs for each in found[case.name]]
        cpu = median([share(each, "cpu_seconds") for each in runs]) / case.share
        device = median([share(each, "device_seconds") for each in runs])
        lines.append(
            f"| {case.name} | {speed:.2f} | {cpu:.0%} | {device:.0%} | {BATCH / speed:.3f} | "
            f"{case.dollars.cells(speed)} |"
        )
    rows = [
        Row("samples per dollar, with the auxiliary host / GPU host alone",
            ratios(speeds[MIXED.name], speeds[SMALL.name],
                   for_a_dollar(MIXED.dollars, SMALL.dollars)), ">= 1.35"),
        Row("samples/s, with the auxiliary host / without, same device",
            ratios(speeds[MIXED.name], speeds[SMALL.name]), ""),
        Row("... unlimited device, where the cores allow 5",
            ratios(speeds["free mixed"], speeds["free"]), ""),
        Row("GPU host alone, unlimited device, / torch's workers without these variables",
            ratios(speeds["free"], speeds["as usual"]), ""),
        *forecast_rows(found["free"], ratios(speeds["free mixed"], speeds["free"])),
    ]  # fmt: skip
    command = "sudo python benchmarks/cluster/blur.py"
    write_section("The reference mix with real blurs", command, lines, rows, page=PAGE, dry=dry)


def ratios(above: list[float], below: list[float], factor: float = 1.0) -> list[float]:
    """Return what one figure is of another in each round."""
    return [one / other * factor for one, other in zip(above, below, strict=True)]


def forecast_rows(runs: list[Ran], measured: list[float]) -> list[Row]:
    """Return how what was predicted, of any device, compares with what was measured."""
    predicted = [each.forecast.speedup for each in runs if each.forecast is not None]
    off = [abs(one / other - 1) for one, other in zip(predicted, measured, strict=True)]
    return [
        Row("... predicted from the run without it", predicted, ""),
        Row("... predicted / measured, error", off, "<= 0.25"),
    ]


if __name__ == "__main__":
    main()
