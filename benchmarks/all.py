"""Everything that docs/benchmarks.md reports, one benchmark after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ["loader/run.py", "remote.py", "index/run.py", "resume.py", "exactness/kills.py"]


def main() -> None:
    """Run every benchmark and fail if one did; `make bench` has installed the peers."""
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
