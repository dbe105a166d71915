"""Writes tests/goldens/expected anew: `python tests/goldens/write.py`, then look at the diff."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Collect all texts and write each to a file."""
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tools")]
    from surfaces import KINDS, collect

    texts = {name: text for kind in KINDS for name, text in collect(kind).items()}
    shutil.rmtree(HERE / "expected", ignore_errors=True)
    for name, text in texts.items():
        file = HERE / "expected" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


if __name__ == "__main__":
    main()
