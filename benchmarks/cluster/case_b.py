"""Reference case B: a ViT whose preparation starves a small host, by a plain loader and by Ray.

    sudo python benchmarks/cluster/case_b.py

The scripts are those of examples/ray_vit as they are. Beside them lie other modules by the names
of theirs: preparation takes 40 ms a sample and needs no core, and the device takes 225 samples a
second, so 20 cores and a GPU fit on any machine. Batches are the reference's, 64 images of
224x224x3 float32 (38.5 MB), and travel for real between two network namespaces. All ways are
recorded, and the table is made of the records. Then the scripts run with their own modules, small.
Writes a section of docs/offload.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

from launches import LONGEST_S, SCRIPTS  # noqa: E402
from prices import CPU_HOST, GPU_HOST  # noqa: E402

from cpu_steal import TRIES, run_undisturbed  # noqa: E402 - stands above this folder
from headrace.records.reader import open_records  # noqa: E402
from network_hosts import network_hosts, sagemaker  # noqa: E402 - of the tests
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
EXAMPLE = HERE.parents[1] / "examples" / "ray_vit"
BATCH, DEVICE_RATE = 64, 225.0
DOLLARS = {"gpu": GPU_HOST, "cpu": CPU_HOST}
# The reference's pair of hosts gave 23 % more for a dollar.
REFERENCE_SPEED, REFERENCE_WORTH = 1.94, 1.23


@dataclass(frozen=True, slots=True)
class Way:
    """One way to train.

    Attributes:
        name: As the table has it.
        groups: The hosts' groups; one host of each.
        command: Flags and script.
        cores: Of each host, as Ray is given them.
        is_emulated: Preparation and device wait for as long as they would take.
        steps: How many; the later half counts, as processes of Ray take a while to start.
    """

    name: str
    groups: tuple[str, ...]
    command: tuple[str, ...]
    cores: dict[str, int] = field(default_factory=lambda: {"gpu": 4, "cpu": 16}, hash=False)
    is_emulated: bool = True
    steps: int = 200

    @property
    def dollars(self) -> float:
        """What its hosts cost an hour."""
        return sum(DOLLARS[group].sagemaker for group in self.groups)


@dataclass(frozen=True, slots=True)
class Found:
    """What the records of one run say.

    Attributes:
        step_s: Mean seconds a step.
        wait_share: Data wait / step time.
    """

    step_s: float
    wait_share: float

    @property
    def samples_s(self) -> float:
        """Samples a second."""
        return BATCH / self.step_s


BOTH = ("gpu", "cpu")
PLAIN, RAY = ("train.py", "--workers", "4"), ("--driver", "train_ray.py")
ALONE = Way("plain DataLoader, GPU host alone", ("gpu",), PLAIN)
OFFLOAD = Way("... with `--offload`", BOTH, ("--offload", "cpu", *PLAIN))
RAY_ALONE = Way("Ray Data + TorchTrainer, GPU host alone", ("gpu",), RAY)
RAY_BOTH = Way("... on both hosts", BOTH, RAY)
WAYS = [ALONE, OFFLOAD, RAY_ALONE, RAY_BOTH]
FEW = {"gpu": 2, "cpu": 2}
REAL = [
    Way("plain DataLoader with `--offload`", BOTH,
        ("--offload", "cpu", "train.py", "--workers", "2", "--model", "tiny"), FEW, False, 24),
    Way("Ray Data + TorchTrainer", BOTH, (*RAY, "--model", "tiny"), FEW, False, 24),
]  # fmt: skip


def main() -> None:
    """Measure all ways, in turns, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    found: dict[Way, list[Found]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way in WAYS:
            tries = 1 if options.dry else TRIES  # dry: to see that it works
            found[way].append(run_undisturbed(lambda _, way=way: run(way), tries=tries))  # type: ignore[misc]
            last = found[way][-1]
            print(f"round {number + 1}: {way.name}: {last.step_s:.3f} s a step, data wait "
                  f"{last.wait_share:.0%}", flush=True)  # fmt: skip
    publish(found, {way: run(way) for way in REAL}, dry=options.dry)


def run(way: Way) -> Found:
    """Have its hosts join, as a SageMaker job's do, and read what was recorded."""
    with tempfile.TemporaryDirectory() as temporary, network_hosts(way.groups) as hosts:
        folder = Path(temporary)
        for script in ("train.py", "train_ray.py", "pace.py"):
            shutil.copy(EXAMPLE / script, folder)
        modules = SCRIPTS / "case_b" if way.is_emulated else EXAMPLE
        for name in ("images.py", "vit.py"):
            shutil.copy(modules / name, folder)
        steps = ["--batch-size", str(BATCH), "--steps", str(way.steps)]
        steps += ["--every", str(way.steps // 2)]
        groups = {group: [group] for group in way.groups}
        launched = {
            host.name: host.start(
                folder, "cluster", "join", "--run-dir", "run", *way.command, *steps,
                HOME=temporary,  # Ray Train keeps its results there
                RAY_OVERRIDE_RESOURCES=json.dumps({"CPU": way.cores[host.name]}),
                **sagemaker(host, groups, "gpu"),
            )
            for host in hosts
        }  # fmt: skip
        try:
            code = launched["gpu"].wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            raise SystemExit(f"{way.name}: the job ended with {code}:\n{hosts[0].output(folder)}")
        for other in launched.values():
            other.wait(LONGEST_S)
        return read(folder / "run", way)


def read(run_folder: Path, way: Way) -> Found:
    """Return what the records of a run say of the later half of its steps."""
    rows = open_records(run_folder).table("steps").to_pylist()
    steps = [row for row in rows if row["kind"] == "train"]
    if len(steps) != way.steps:
        raise SystemExit(f"{way.name}: {len(steps)} of {way.steps} steps were recorded")
    later = steps[-(way.steps // 2) :]
    wall_ns = sum(row["wall_ns"] for row in later)
    return Found(
        step_s=wall_ns / len(later) / 1e9,
        wait_share=sum(row["data_wait_ns"] for row in later) / wall_ns,
    )


def publish(found: dict[Way, list[Found]], real: dict[Way, Found], *, dry: bool) -> None:
    """Print the table, and write it to the page."""
    description = (
        "The scripts of examples/ray_vit, 4 cores on the GPU host and 16 on the other. In place of "
        "blurs and ViT, preparation sleeps 40 ms a sample, and the device takes a batch of 64 at "
        "225 samples/s; batches of 38.5 MB are really transferred. TorchTrainer's worker takes one "
        "core of the GPU host from Ray Data. Seconds and waits are from the run's records, for the "
        "last 100 of 200 steps."
    )
    real_description = (
        "The same scripts with their own blurs and a tiny ViT, the last 12 of 24 steps, once. Both "
        f"hosts are namespaces on this machine's {os.cpu_count()} cores, which also are the "
        "device, so another host adds nothing: this shows each method's own cost."
    )
    table = [
        description,
        "",
        "| | s a step | data wait | samples/s | device | $ per 1,000 samples |",
        "|---|---|---|---|---|---|",
        *(line(way, runs) for way, runs in found.items()),
        "",
        real_description,
        "",
        "| | s a step | data wait | samples/s |",
        "|---|---|---|---|",
        *(
            f"| {way.name} | {each.step_s:.2f} | {each.wait_share:.1%} | {each.samples_s:.1f} |"
            for way, each in real.items()
        ),
    ]

    def faster(one: Way, other: Way) -> list[float]:
        pairs = zip(found[one], found[other], strict=True)
        return [ours.samples_s / theirs.samples_s for ours, theirs in pairs]

    worth = [each * ALONE.dollars / OFFLOAD.dollars for each in faster(OFFLOAD, ALONE)]
    rows = [
        Row("plain DataLoader: speed with --offload / without (the reference: 1.94)",
            faster(OFFLOAD, ALONE), f">= {REFERENCE_SPEED}"),
        Row("... samples per dollar (the reference: 1.23)", worth, f">= {REFERENCE_WORTH}"),
        Row("... remaining data wait", [each.wait_share for each in found[OFFLOAD]], "<= 0.05"),
        # Told only: the device bounds both, so they differ by what a step costs beside it.
        Row("... speed / Ray Data + TorchTrainer on the same hosts",
            faster(OFFLOAD, RAY_BOTH), ""),
        Row("... share of the device's 225 samples/s",
            [each.samples_s / DEVICE_RATE for each in found[OFFLOAD]], ">= 0.95"),
    ]  # fmt: skip
    command = "sudo python benchmarks/cluster/case_b.py"
    write_section("Reference case B", command, table, rows, page=PAGE, dry=dry)


def line(way: Way, runs: list[Found]) -> str:
    """Return a row of the table."""
    step_s = median(each.step_s for each in runs)
    samples_s = BATCH / step_s
    return (
        f"| {way.name} | {step_s:.3f} | {median(each.wait_share for each in runs):.1%} | "
        f"{samples_s:.0f} | {samples_s / DEVICE_RATE:.0%} | "
        f"{way.dollars / 3.6 / samples_s:.5f} |"
    )


if __name__ == "__main__":
    main()
