"""The reference mix: a host with 4 cores that starves, and 16 cores of an auxiliary host beside it.

    python benchmarks/cluster/mix.py

Preparation takes 40 ms a sample and needs no core, so 20 workers fit on any machine. The script is
unmodified. Writes a section of docs/offload.md: how throughput grows with auxiliary workers, what
Ray Data gives on the same work, and what a sample costs at the reference's prices.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from forecasts import Forecasts, forecast_from  # noqa: E402
from launches import SCRIPTS, headrace, printed_epochs, rate, share  # noqa: E402
from prices import BIG_HOST, CELLS, CPU_HOST, GPU_HOST, PRICE_NOTE, Dollars, for_a_dollar  # noqa: E402

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from headrace.observe.whatif.prediction import Prediction  # noqa: E402
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
PREPARE_S = 0.040
LOCAL = 4
DEVICE_RATE = 225.0
BATCH = 8
EPOCH_S = 20.0  # long beside the third of a second in which an epoch's first batches are made


@dataclass(frozen=True, slots=True)
class Case:
    """One job.

    Attributes:
        auxiliary: Workers on the auxiliary host.
        device_rate: Samples a second that the device takes; 0: any number.
        local: Workers on the host that trains.
        hosts: Auxiliary hosts, among which its workers are spread.
    """

    auxiliary: int
    device_rate: float = 0.0
    local: int = LOCAL
    hosts: int = 1

    @property
    def ideal(self) -> float:
        """Samples a second if nothing were lost."""
        workers = (self.local + self.auxiliary) / PREPARE_S
        return min(workers, self.device_rate) if self.device_rate else workers


ALONE, FULL = Case(0), Case(16)
GROWING = [Case(1), Case(2), Case(4), Case(8), Case(8, hosts=2), FULL]
RAYS_GROWTH = (
    "All hosts are emulated. Ray Data's published scaling (issue 42318 of its "
    "repository): 753, 1233, 1711 and 1764 images/s with 0, 1, 5 and 10 CPU nodes."
)
SMALL, MIXED = Case(0, DEVICE_RATE), Case(16, DEVICE_RATE)
BIG = Case(0, DEVICE_RATE, local=16)


def main() -> None:
    """Measure and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    cases = [ALONE, *GROWING, SMALL, MIXED, BIG]
    found: dict[Case | str, list[list[dict[str, Any]]]] = {}
    forecasts_of: dict[Case, list[Prediction]] = {}
    for number in range(options.rounds):
        for case in cases:
            ran = run_undisturbed(lambda _, case=case: run(case))  # type: ignore[misc]
            epochs, predictions = ran
            found.setdefault(case, []).append(epochs)
            for other, prediction in predictions.items():
                forecasts_of.setdefault(other, []).append(prediction)
            print(f"round {number + 1}: {case}: {rate(epochs):.1f} of {case.ideal:.0f}", flush=True)
        epochs = run_undisturbed(lambda _: ray_data(LOCAL + 16))
        found.setdefault("Ray Data", []).append(epochs)
        print(f"round {number + 1}: Ray Data: {rate(epochs):.1f}", flush=True)
    publish(found, forecasts_of, dry=options.dry)


def run(case: Case) -> tuple[list[dict[str, Any]], dict[Case, Prediction]]:
    """Run the script on a cluster of emulated hosts.

    Returns:
        Its epochs; and without an auxiliary host, what is predicted of those that have some.
    """
    samples = int(EPOCH_S * case.ideal) // BATCH * BATCH
    arguments = ["--samples", str(samples), "--batch", str(BATCH), "--workers", str(case.local)]
    arguments += ["--device-rate", str(case.device_rate)]
    flags = ["--engine", "ray", "--group", f"gpu=1:cpus={case.local}"]
    if case.auxiliary:
        cpus = case.auxiliary // case.hosts
        flags += ["--group", f"cpu={case.hosts}:cpus={cpus}", "--offload", "cpu"]
    with tempfile.TemporaryDirectory() as folder:
        epochs = headrace("mix.py", arguments, *flags, "--run-dir", f"{folder}/run")
        # What the device waits is not predicted: its clock is emulated, and the probe sees none.
        more = GROWING if case == ALONE else []
        run_folder = Path(folder) / "run"
        return epochs, {each: forecast_from(run_folder, each.auxiliary) for each in more}


def ray_data(cpus: int) -> list[dict[str, Any]]:
    """Run the same work by Ray Data."""
    samples = int(EPOCH_S * cpus / PREPARE_S) // (4 * BATCH) * (4 * BATCH)
    script = str(SCRIPTS / "ray_data_mix.py")
    arguments = ["--samples", str(samples), "--cpus", str(cpus), "--batch", str(BATCH)]
    return printed_epochs([sys.executable, script, *arguments])


def publish(
    found: dict[Any, list[list[dict[str, Any]]]],
    forecasts_of: dict[Case, list[Prediction]],
    *,
    dry: bool,
) -> None:
    """Print the tables, and write them to the page."""
    rates = {case: [rate(epochs) for epochs in runs] for case, runs in found.items()}
    forecasts = Forecasts(rates, forecasts_of, alone=rates[ALONE])
    table = [
        RAYS_GROWTH,
        "",
        "| auxiliary workers | samples/s | share of all workers' capacity | predicted, samples/s |",
        "|---|---|---|---|",
        growth_line("none", rates[ALONE], ALONE),
        *(
            growth_line(named(case), rates[case], case, f"{median(forecasts.likely(case)):.0f}")
            for case in GROWING
        ),
        growth_line("Ray Data, 20 tasks at a time", rates["Ray Data"], FULL),
        "",
        *price_table(found),
    ]
    better = [
        mixed / small * for_a_dollar(GPU_HOST + CPU_HOST, GPU_HOST)
        for mixed, small in zip(rates[MIXED], rates[SMALL], strict=True)
    ]
    rows = [
        Row("16 auxiliary workers, device of 225 samples/s: share of its rate",
            [each / MIXED.ideal for each in rates[MIXED]], ">= 0.95"),
        Row("16 auxiliary workers, unlimited device: share of the 500/s of 20 workers",
            [each / FULL.ideal for each in rates[FULL]], ">= 0.95"),
        Row("... over Ray Data",
            [own / theirs for own, theirs in zip(rates[FULL], rates["Ray Data"], strict=True)],
            ">= 1.0"),
        Row("predicted from the run without: error, mean over the job sizes",
            forecasts.mean_errors(), "<= 0.1"),
        Row("... share of intervals that contain the measurement", forecasts.held(), ">= 0.8"),
        Row("samples per dollar, with the auxiliary host / GPU host alone", better, ">= 1.35"),
    ]  # fmt: skip
    command = "python benchmarks/cluster/mix.py"
    write_section("The reference mix", command, table, rows, page=PAGE, dry=dry)


def named(case: Case) -> str:
    """Return how the table calls a job's auxiliary workers."""
    return f"{case.auxiliary}" + (f", on {case.hosts} hosts" if case.hosts > 1 else "")


def growth_line(name: str, rates: list[float], case: Case, forecast: str = "-") -> str:
    """Return a row of the table of growth."""
    return f"| {name} | {median(rates):.0f} | {median(rates) / case.ideal:.1%} | {forecast} |"


def price_table(found: dict[Any, list[list[dict[str, Any]]]]) -> list[str]:
    """Return the table of prices."""
    lines = [
        PRICE_NOTE,
        "CPU: share of the time of the GPU host's workers, one for each core, that samples took.",
        "",
        f"| hosts | samples/s | CPU | device | s a step | {CELLS} |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    priced: dict[str, tuple[Case, Dollars]] = {
        "GPU host, 4 cores": (SMALL, GPU_HOST),
        "... and an auxiliary host, 16 cores": (MIXED, GPU_HOST + CPU_HOST),
        "GPU host with 16 cores instead": (BIG, BIG_HOST),
    }
    for name, (case, dollars) in priced.items():
        epochs = [each for run in found[case] for each in run[1:]]
        speed = median([rate(run) for run in found[case]])
        device = median([share(run, "device_seconds") for run in found[case]])
        busy_s = sum(each["made_here"] for each in epochs) * PREPARE_S
        cpu = busy_s / sum(each["seconds"] for each in epochs) / case.local
        lines.append(
            f"| {name} | {speed:.0f} | {cpu:.0%} | {device:.0%} | {BATCH / speed:.4f} | "
            f"{dollars.cells(speed)} |"
        )
    return lines


if __name__ == "__main__":
    main()
