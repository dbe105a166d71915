"""The parts of the fault matrix: a row, what it gets to do its harm with, and how it is judged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ledger import Reading, read_ledger
from s3_server import S3Server

HERE = Path(__file__).parent
HANG_S = 300.0  # a start on a full machine included


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row at one seed.

    Attributes:
        folder: Empty, of this case alone.
        seed: Of everything that is left to chance.
        server: Object storage; what the case puts there is below a prefix of its own.
    """

    folder: Path
    seed: int
    server: S3Server
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chance", random.Random(self.seed))

    @property
    def url(self) -> str:
        """Where this case's dataset is in object storage."""
        return f"s3://{self.server.bucket}/{self.folder.parent.name}-{self.folder.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which object storage is reached."""
        return self.server.environment()

    def new_folder(self, name: str) -> Path:
        """Return a new folder of the case."""
        path = self.folder / name
        path.mkdir()
        return path


Figures = dict[str, float]
"""What a case has measured, by name; a row's limits are for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault.

    Attributes:
        fault: What is done.
        passes: What has to come of it, beside what `limits` says.
        run: Does it; raises an exception where the promise is not kept.
        limits: The largest value of a figure, by its name: of the median over the seeds.
    """

    fault: str
    passes: str
    run: Callable[[Case], Figures]
    limits: dict[str, float] = field(default_factory=dict)


def read_by_script(
    folder: Path, url: str, *flags: str, prefix: Sequence[str] = (), **environment: str
) -> Reading:
    """Run the reader to its end in a folder; return what it has written."""
    with reading(folder, url, *flags, prefix=prefix, **environment) as process:
        process.wait(timeout=HANG_S)
    return read_ledger(folder)


@contextmanager
def reading(
    folder: Path, url: str, *flags: str, prefix: Sequence[str] = (), **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the reader meanwhile; its output is in the file `output`."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / "reader.py"), url, *flags],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], what: str, longest_s: float = HANG_S) -> None:
    """Wait until something is so; raises TimeoutError with `what` at the deadline."""
    until_s = time.monotonic() + longest_s
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what}: not within {longest_s:.0f} s")
        time.sleep(0.01)
