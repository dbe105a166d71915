"""Several scripts, one after another in one process: torch is imported once for all of them.

Arguments: a JSON list of [script, arguments...], and a folder for `parts-<rank>.json`, which says
when each ran.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path

scripts, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
parts = []
for script, *arguments in scripts:
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    began_ns = time.monotonic_ns()
    runpy.run_path(script, run_name="__main__")
    parts.append([began_ns, time.monotonic_ns()])
(folder / f"parts-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(parts))
