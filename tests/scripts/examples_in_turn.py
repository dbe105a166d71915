"""Examples, one after another in the same ranks: their libraries are imported once.

Arguments: a JSON list of [script, arguments...]. All have one process group: a second one at
torchrun's store may meet the addresses of the first.
"""

import json
import runpy
import sys

import torch.distributed as dist

leave_group, dist.destroy_process_group = dist.destroy_process_group, lambda: None
for script, *arguments in json.loads(sys.argv[1]):
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
leave_group()
