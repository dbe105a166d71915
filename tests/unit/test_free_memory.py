"""The live page's server gives memory back that it no longer uses, also what Arrow has had."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.core import env

_ALLOCATORS = """
import re
from headrace.core import env
from headrace.core.free_memory import hold_little_memory

hold_little_memory()
import pyarrow as pa
import pyarrow.compute as pc

pc.sort_indices(pa.array(range(3000, 0, -1)))  # takes memory from Arrow's own default
sizes_kb = re.findall(r"Size: *([0-9]+) kB", open("/proc/self/smaps").read())
reserves = max(map(int, sizes_kb)) >= 1 << 20
print(pa.default_memory_pool().backend_name, env.ARROW_DEFAULT_MEMORY_POOL.get(), reserves)
"""


@pytest.mark.parametrize(
    ("chosen", "printed"),
    [(None, "system None False"), ("mimalloc", "mimalloc mimalloc True")],
)
def test_arrow_uses_the_allocator_that_gives_memory_back(chosen: str | None, printed: str) -> None:
    """Arrow's own allocator shows itself by the gibibyte of addresses that it reserves."""
    environment = env.child_environment({env.ARROW_DEFAULT_MEMORY_POOL.name: chosen})
    command = [sys.executable, "-c", _ALLOCATORS]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == printed
