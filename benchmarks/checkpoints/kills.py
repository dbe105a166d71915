"""A job of two ranks is ended at a random instant: where does it go on when it is started again?

python benchmarks/checkpoints/kills.py [ROUNDS] [SEED]

Each round trains with --checkpoint-uri on a real S3 server, ends the job, starts it again, and
compares where it goes on with what was whole when it was ended. It is ended by SIGTERM, by kill -9
of launcher and ranks, or by kill -9 of every process, the one that syncs checkpoints included.
There are ROUNDS rounds for each of two fates of the host's disk, which have a criterion each:

stays  The processes are gone, the run's folder is there, and the job is started again at once. It
       must go on from the last checkpoint that the script had written: nothing is lost but the
       steps since.
lost   The run's folder is removed, as a new machine would not have it: the job goes on from the
       URL alone. That must have what had been complete long enough to be uploaded ("required").
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from s3_server import S3Server, s3_server  # noqa: E402 - as above

from headrace.jobs.sync.file_groups import SETTLING_S  # noqa: E402 - as above
from headrace.jobs.sync.sync_process import PASS_EVERY_S  # noqa: E402 - as above
from jobs import alive, descendants, headrace  # noqa: E402 - after the path

_LOOKS_S = 2 * PASS_EVERY_S  # at the change, and once it has settled
_TRANSFER_S = 1.0  # files, then the manifest: requests that share two cores with the training
_LONGEST_S = 240.0
_WAYS = ("saved", "checkpointer")
_DISKS = ("stays", "lost")
_ENDS = ("SIGTERM", "kill -9, sync process left", "kill -9, everything")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How one round went.

    Attributes:
        disk: Whether the run's folder is there when the job is started again.
        way: What writes checkpoints.
        end: What ended the job.
        after_s: How long after its first checkpoint.
        written: The last checkpoint that was whole when the job was ended.
        owed: The last one from which the job must go on, or from a later one.
        found: Where the job went on.
    """

    disk: str
    way: str
    end: str
    after_s: float
    written: int
    owed: int
    found: int | None

    @property
    def is_well(self) -> bool:
        """Whether nothing is lost that was owed."""
        return self.found is not None and self.owed <= self.found

    def line(self) -> str:
        """Return its row of a table."""
        well = "yes" if self.is_well else "NO"
        cells = (
            self.disk, self.way, self.end, f"{self.after_s:.1f}", self.written, self.owed,
            self.found, well,
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |"


def main(rounds: int, seed: int) -> int:
    """Run the rounds and print a table; returns 1 where one lost something."""
    chosen = random.Random(seed)
    done: list[Round] = []
    print(
        "| disk | checkpoints by | ended by | after s | last complete | required "
        "| resumed at | met |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as temporary,
        s3_server(Path(temporary) / "s3") as server,
    ):
        for disk in _DISKS:
            for number in range(rounds):
                folder = Path(temporary) / f"{disk}-{number}"
                folder.mkdir()
                end = _ENDS[number // len(_WAYS) % len(_ENDS)]
                way = _WAYS[number % len(_WAYS)]
                done.append(_round(server, folder, disk, way, end, chosen.uniform(0.2, 9.0)))
                print(done[-1].line(), flush=True)
    print()
    for disk in _DISKS:
        print(_summary(disk, [each for each in done if each.disk == disk]))
    return 0 if all(each.is_well for each in done) else 1


def _summary(disk: str, done: list[Round]) -> str:
    well = sum(each.is_well for each in done)
    behind = [each.written - each.found for each in done if each.found is not None]
    return (
        f"disk {disk}: {well} of {len(done)}; the job went on at most {max(behind, default=0)} "
        "steps before the last complete checkpoint"
    )


def _round(server: S3Server, folder: Path, disk: str, way: str, end: str, after_s: float) -> Round:
    notes = folder / "notes"
    job = _start(server, folder, way, steps=100_000)
    _wait_for(notes, "whole", job)
    time.sleep(after_s)
    ended_s, left = _end(job, end)
    if disk == "lost":
        while any(map(alive, left)):  # its machine is there for so long
            time.sleep(0.02)
        shutil.rmtree(folder / "run")
    lines = notes.read_text().splitlines()
    notes.unlink()
    again = _start(server, folder, way, steps=3)
    code = again.wait(timeout=_LONGEST_S)
    begun = [line.split()[1] for line in notes.read_text().splitlines() if line.startswith("from")]
    whole = [(int(step), float(at)) for _, step, at in
             (line.split() for line in lines if line.startswith("whole"))]  # fmt: skip
    # What is on the disk needs no upload; what is asked to stop closes its files and ends: all of
    # them are uploaded.
    needs_no_time = disk == "stays" or end == "SIGTERM"
    uploaded_s = ended_s - (SETTLING_S + _LOOKS_S + _TRANSFER_S)
    written = [step for step, _ in whole]
    owed = written if needs_no_time else [step for step, at_s in whole if at_s < uploaded_s]
    return Round(
        disk=disk,
        way=way,
        end=end,
        after_s=after_s,
        written=max(written, default=0),
        owed=max(owed, default=0),
        found=int(begun[-1]) if code == 0 and begun else None,
    )


def _start(server: S3Server, folder: Path, way: str, *, steps: int) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("train.py")
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            headrace(
                "run", "--run-dir", str(folder / "run"), "--profile", "off",
                "--nproc-per-node", "2",
                "--checkpoint-uri", f"s3://{server.bucket}/{folder.name}",
                str(script), way, str(folder / "notes"), str(steps),
            ),
            env={**os.environ, **server.environment(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip


def _wait_for(notes: Path, word: str, job: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + _LONGEST_S
    while not notes.exists() or word not in notes.read_text():
        if time.monotonic() > until_s or job.poll() is not None:
            raise SystemExit(f"no {word} in {notes}: see {notes.with_name('output').read_text()}")
        time.sleep(0.02)


def _end(job: subprocess.Popen[bytes], end: str) -> tuple[float, list[int]]:
    """End a job and return when, in seconds since 1970, and the processes that are left."""
    if end == "SIGTERM":
        ended_s = time.time()
        job.terminate()
        job.wait(timeout=_LONGEST_S)
        return ended_s, []
    everything = [job.pid, *descendants(job.pid)]
    syncs = [pid for pid in everything if b"sync.sync_process" in _command(pid)]
    left = syncs if end == "kill -9, sync process left" else []
    ended_s = time.time()
    for pid in everything:
        if pid not in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    job.wait(timeout=_LONGEST_S)
    return ended_s, left


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*(given + [20, 7][len(given) :])))
