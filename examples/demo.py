"""The whole of it on one machine, in four to seven minutes: `make demo`.

Renders street scenes, packs them into a real S3 server, trains segmentation from it on two ranks,
kills one of them with -9 on the way, resumes, and prints what came of it. Each command is printed
as you would type it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import headrace

ROOT = Path(__file__).parents[1]
SEGMENTATION = ROOT / "examples/segmentation"
GOOD_MIOU = 0.55

sys.path.insert(0, str(ROOT / "tools"))
from s3_server import S3Server, s3_server  # type: ignore[import-not-found]  # noqa: E402


def main() -> None:
    """Run the demo; exit with 1 where the model has not learned enough."""
    parser = argparse.ArgumentParser(description="Train from S3, lose a rank, resume.")
    parser.add_argument("--folder", type=Path, help="where to work; demo/TIME by default")
    parser.add_argument("--scenes", type=int, default=600, help="a sixth of them is held out")
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    folder = (args.folder or Path("demo") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    begin = time.perf_counter()

    held_out = args.scenes // 6
    run("python", str(SEGMENTATION / "streets.py"), str(folder / "streets"), "--image-format=jpg",
        f"--train={args.scenes - held_out}", f"--val={held_out}")  # fmt: skip
    with s3_server(folder / "s3") as server:
        os.environ.update(server.environment())
        print(f"\nan S3 server at {server.endpoint}, bucket {server.bucket}")
        url = f"s3://{server.bucket}"
        for split in ("train", "val"):
            run("headrace", "data", "pack", str(folder / "streets"), f"{url}/streets/{split}",
                f"--split={split}", "--shard-size=4MiB")  # fmt: skip
        train_through_a_kill(folder / "run", server, args.epochs)

    miou = summarise(folder / "run/metrics.jsonl", held_out)
    print(f"all in all {time.perf_counter() - begin:.0f} s; everything lies in {folder}")
    if miou < GOOD_MIOU:
        sys.exit(f"The mean IoU is below {GOOD_MIOU}: something is wrong.")


def train_through_a_kill(folder: Path, server: S3Server, epochs: int) -> None:
    """Train on two ranks; kill one after the first checkpoint, and go on from there."""
    checkpoints = f"s3://{server.bucket}/checkpoints"
    command = [
        "headrace", "run", f"--run-dir={folder}", "--nproc-per-node=2",
        str(SEGMENTATION / "train.py"), f"--data=s3://{server.bucket}/streets",
        f"--config={SEGMENTATION / 'segformer-small.json'}", f"--epochs={epochs}",
        "--batch-size=1", "--crop", "192", "384", "--lr=2e-3",
        f"--checkpoints={checkpoints}", "--save-every=50",
    ]  # fmt: skip
    with start(*command) as job:
        watched = headrace.Checkpointer(checkpoints)
        while watched.latest() is None and job.poll() is None:
            time.sleep(0.5)
        if job.poll() is not None:
            sys.exit(f"Training ended with exit code {job.returncode} before its first checkpoint.")
        rank = second_rank(job.pid)
        print(f"\n--> checkpoint {watched.latest()} is there: kill -9 {rank.pid}, the second rank")
        rank.send_signal(signal.SIGKILL)
        print(f"--> the job ended with exit code {job.wait(timeout=60)}; now resume\n", flush=True)
    run(*command, "--resume")


def second_rank(job: int) -> psutil.Process:
    """Return the process of rank 1: the eldest below the job that has RANK=1."""
    below = psutil.Process(job).children(recursive=True)
    return min(
        (process for process in below if process.environ().get("RANK") == "1"),
        key=psutil.Process.create_time,
    )


def summarise(metrics: Path, held_out: int) -> float:
    """Print what the epochs logged; return the last one's mean IoU."""
    epochs = [json.loads(line) for line in metrics.read_text().splitlines()]
    last, seconds = epochs[-1], sum(epoch["epoch_s"] for epoch in epochs)
    rate = sum(epoch["images_per_s"] * epoch["epoch_s"] for epoch in epochs) / seconds
    wait = sum(epoch["data_wait_share"] * epoch["epoch_s"] for epoch in epochs) / seconds
    print("\nIoU:", ", ".join(f"{name} {iou:.2f}" for name, iou in last["iou"].items()))
    print(f"mean IoU on {held_out} held-out scenes: {last['val_miou']:.3f}")
    print(f"training rate, both ranks: {rate:.1f} images/s")
    print(f"share of the time spent waiting for data: {wait:.1%}")
    return float(last["val_miou"])


def run(program: str, *arguments: str) -> None:
    """Run a command and end the demo where it fails."""
    with start(program, *arguments) as process:
        if code := process.wait():
            sys.exit(f"{program} ended with exit code {code}.")


def start(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Print a command and start it, from this Python's environment."""
    shown = [word.replace(f"{ROOT}/", "") for word in (program, *arguments)]
    print("\n$", " ".join(shown), flush=True)
    return subprocess.Popen([str(Path(sys.executable).parent / program), *arguments])


if __name__ == "__main__":
    main()
