"""Counts the functions and files of Headrace that a batch or a timing passes in all processes.

    python tools/walk_processes.py batch
    python tools/walk_processes.py timing

`batch`: batches of an unmodified DataLoader that an auxiliary host makes, in the rank, the process
beside it and the host's; without recording. `timing`: what a worker measures of a batch of torch's
own DataLoader, in the worker, the collector and `headrace doctor`. Both follow what is called while
a script is in its steady state, so that starts and ends do not count. What imports call does not
count either. WALK=list prints each function.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = f"{os.sep}src{os.sep}headrace{os.sep}"

# Runs in every Python process: notes functions of Headrace that are called while the byte is set.
FOLLOWER = f"""
import mmap, os, sys, threading
package, own, seen = {PACKAGE!r}, os.path.dirname(__file__), set()
with open(os.path.join(own, "window"), "r+b") as file:
    window = mmap.mmap(file.fileno(), 1)

def in_import(frame):
    while frame := frame.f_back:
        module = frame.f_code.co_name == "<module>" and package in frame.f_code.co_filename
        if module and frame.f_globals["__name__"] != "__main__":
            return True
    return False

def note(frame, event, _):
    if event != "call" or not window[0]:
        return
    code = frame.f_code
    if package not in code.co_filename or code.co_qualname.startswith("<"):
        return
    if (os.getpid(), code) not in seen and not in_import(frame):
        seen.add((os.getpid(), code))
        file = code.co_filename.partition(package)[2]
        line = f"{{os.getpid()}}\\t{{file}}\\t{{code.co_qualname}}\\n"
        out = os.open(os.path.join(own, "walk"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(out, line.encode())
        os.close(out)

sys.setprofile(note)
threading.setprofile(note)
"""

SCRIPT = """
import mmap, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((3, 16, 16), index % 256, dtype=torch.uint8)

def main(window):
    model = torch.nn.Linear(768, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(Images(), batch_size=16, num_workers=1, prefetch_factor=4))
    begun_s = None
    for batch in batches:
        optimizer.zero_grad()
        model(batch.flatten(1).float()).sum().backward()
        optimizer.step()
        begun_s = begun_s or time.monotonic()
        window[0] = 8 < time.monotonic() - begun_s < 16
        if time.monotonic() - begun_s > 18:
            return

if __name__ == "__main__":
    with open(sys.argv[1], "r+b") as file:
        main(mmap.mmap(file.fileno(), 1))
"""


def follow_batch(folder: Path, follower: Path) -> None:
    """Run the script with an auxiliary host on this machine."""
    sys.path[:0] = [str(REPOSITORY / "tests")]
    from offload_servers import OffloadServers

    os.environ["PYTHONPATH"] = str(follower)
    servers = OffloadServers(folder)
    try:
        servers.start("one", 2)
        ended = servers.run("train.py", str(follower / "window"))
    finally:
        servers.close()
    sys.exit(ended.stderr) if ended.returncode else None


def follow_timing(folder: Path, follower: Path) -> None:
    """Run and record the script, then look for what held it back."""
    environment = {**os.environ, "PYTHONPATH": str(follower)}
    headrace = [sys.executable, "-m", "headrace.cli.main"]
    window = follower / "window"
    subprocess.run(
        [*headrace, "run", "--run-dir", "run", "train.py", str(window)],
        cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    window.write_bytes(b"\1")
    subprocess.run(
        [*headrace, "doctor", "run"],
        cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def print_walk(walk: Path) -> None:
    """Print how many functions and files each process and all of them passed."""
    of_process: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for line in walk.read_text().splitlines():
        process, file, function = line.split("\t")
        of_process[process].add((file, function))
    of_process["all"] = set().union(*of_process.values())
    for process, functions in of_process.items():
        files = {file for file, _ in functions}
        print(f"process {process}: {len(functions)} functions in {len(files)} files")
        if os.environ.get("WALK") == "list":
            print(*sorted(f"  {file}: {name}" for file, name in functions), sep="\n")


def main() -> None:
    """Follow what the command line names."""
    follow = {"batch": follow_batch, "timing": follow_timing}[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        follower = Path(folder) / "follower"
        follower.mkdir()
        (follower / "sitecustomize.py").write_text(FOLLOWER)
        (follower / "window").write_bytes(b"\0")
        (Path(folder) / "train.py").write_text(SCRIPT)
        follow(Path(folder), follower)
        print_walk(follower / "walk")


if __name__ == "__main__":
    main()
