"""What a job exposes: secrets in its files, arguments and errors; sockets that it listens on."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
from ledger import LedgerError
from matrix import HANG_S, Case, Figures, Row, wait_for

SCRIPT = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader

loader = DataLoader(torch.arange(64.0), batch_size=4, num_workers=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in loader:
    model(batch).sum().backward()
    optimizer.step()
Path(f"up-{os.environ.get('RANK', '0')}").touch()
while not Path("go").exists():
    time.sleep(0.01)
raise ValueError("cannot open " + os.environ["DATA_URL"])
"""


def exposure(case: Case) -> Figures:
    """A job of two ranks with secrets in its environment and addresses, which fails."""
    canary = f"canary{case.chance.getrandbits(64):016x}"
    secrets = {
        "AWS_SECRET_ACCESS_KEY": canary, "HF_TOKEN": f"hf_{canary}", "WANDB_API_KEY": canary,
        "MY_PASSWORD": canary, "DATA_URL": f"https://me:{canary}@127.0.0.1:1/x?X-Amz-Signature={canary}",
    }  # fmt: skip
    (case.folder / "train.py").write_text(SCRIPT)
    with (case.folder / "output").open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "run", "--nproc-per-node=2",
             "--run-dir=run", "train.py"],
            cwd=case.folder, env=os.environ | secrets | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        ups = [case.folder / "up-0", case.folder / "up-1"]
        wait_for(lambda: all(up.exists() for up in ups), "two ranks that train")
        processes = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
        shown = [each.pid for each in processes if canary in " ".join(_arguments(each))]
        sockets = [address for each in processes for address in _listens_on(each)]
        (case.folder / "go").touch()
        job.wait(timeout=HANG_S)
    finally:
        job.kill()
    if shown:
        raise LedgerError("a secret is in the arguments of a process")
    open_to_all = [each for each in sockets if not ipaddress.ip_address(each).is_loopback]
    if open_to_all:
        raise LedgerError(f"the job listens on {open_to_all}")
    if not (case.folder / "run" / "report.html").is_file():
        raise LedgerError("the job has no page")
    leaks = [path for path in _files(case.folder / "run") if canary.encode() in path.read_bytes()]
    own = [path for path in leaks if "logs" not in path.parts]  # a script's output is its own
    if own:
        raise LedgerError(f"a secret is in {[str(each) for each in own]}")
    return {"files without it": len(_files(case.folder / "run")), "sockets": len(sockets)}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _arguments(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _listens_on(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        found = process.net_connections(kind="inet")
        return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]
    return []


ROWS = (
    Row(
        fault="secrets in variables, addresses and errors; who may connect, to a page too",
        passes="in no file of ours and no argument list; sockets on loopback; the page is a file",
        run=exposure,
    ),
)
