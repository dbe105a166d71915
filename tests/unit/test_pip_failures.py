"""What is advised where pip fails, by its own words."""

from __future__ import annotations

import pytest

from headrace.cluster.requirements_installer import last_output_lines, pip_advice

ADVICE = {
    "error: externally-managed-environment": "the system's own",
    "/opt/venv/bin/python: No module named pip": "python -m ensurepip",
    "no such option: --report": "install -U pip",
    "due to an OSError: [Errno 13] Permission denied: '/usr/lib/python3'": "may not be written",
    "OSError: [Errno 30] Read-only file system: '/usr'": "may not be written",
    "due to an OSError: [Errno 28] No space left on device": "Make room",
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'Any'\n"
    "ERROR: No matching distribution found for tiny": "does not reach the package index",
    "The user requested (constraint) torch==2.13.0+cpu": "another torch than 2.13.0+cpu",
    "    The user requested (constraint) numpy>=2.0": "what torch, Ray and Headrace need",
    "ERROR: ResolutionImpossible: for help visit": "Loosen the ranges",
    "ERROR: Could not open constraint file: [Errno 2] No such file": "not in .gitignore",
    "error: subprocess-exited-with-error": "",
}


@pytest.mark.parametrize("output", ADVICE)
def test_what_is_advised(output: str):
    assert ADVICE[output] in pip_advice(output)
    assert bool(ADVICE[output]) == bool(pip_advice(output))


def test_the_last_lines_are_few_and_indented():
    output = "\n".join(f"line {number}\n" for number in range(40))
    assert last_output_lines(output).splitlines() == [
        f"    line {number}" for number in range(28, 40)
    ]
