"""Everything that docs/benchmarks.md reports, one benchmark after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# Peers that pull a torchvision with them; its CUDA build would break a CPU torch.
PEERS = [["--no-deps", "litdata==0.2.76"], ["requests", "tifffile", "lightning-utilities"]]
SCRIPTS = ["loader/run.py", "remote.py", "resume.py", "exactness/kills.py"]


def main() -> None:
    """Install the peers, run every benchmark, and fail if one did."""
    for packages in PEERS:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *packages], check=True)
    path = ":".join(str(folder) for folder in (HERE, HERE.parent / "tools"))
    failed = [
        script
        for script in SCRIPTS
        if subprocess.run(
            ["env", f"PYTHONPATH={path}", sys.executable, str(HERE / script)], check=False
        ).returncode
    ]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
