"""Why pip did not install something, and what to do about that, from what it said."""

from __future__ import annotations

import re

_LAST_LINES = 12
_KEPT = re.compile(r"\(constraint\) (?P<name>torch|ray|headrace)==(?P<version>\S+)", re.IGNORECASE)
_ADVICE = {
    r"\(constraint\)": "What it asks for does not go with what torch, Ray and Headrace need. "
    "Loosen the range that pip names.",
    r"externally-managed-environment": "That Python is the system's own. Start Ray there in a "
    "virtual environment.",
    r"No module named '?pip": "That environment has no pip. Run `python -m ensurepip`, or `uv pip "
    "install pip`, with its Python.",
    r"no such option: --report": "That environment's pip is too old. Run `python -m pip install -U "
    "pip` with its Python.",
    r"Retrying \(Retry\(|Failed to establish a new connection|Name or service not known": "The "
    "host does not reach the package index. PIP_INDEX_URL goes along with the job and names "
    "another; or let the wheels lie beside the script: --no-index and --find-links in the file.",
    r"No matching distribution found|Could not find a version": "Check the name and the version, "
    "and whether there is one for the host's Python and platform.",
    r"Could not open (?:requirements|constraints?) file|does not exist|Invalid requirement": "Is "
    "every file that it names below the folder that goes along, and not in .gitignore?",
    r"Permission denied|Read-only file system": "That environment may not be written. Start Ray "
    "in one that may, or install the packages there beforehand.",
    r"No space left on device": "Make room there.",
    r"ResolutionImpossible": "No versions fit one another. Loosen the ranges that pip names.",
}
"""What to do, by what pip says; the first that it says counts."""


def last_lines(output: str) -> str:
    """Return the end of what pip said, indented.

    Args:
        output: All that it said.
    """
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])


def advice(output: str) -> str:
    """Return what to do; "" where nothing in pip's words tells.

    Args:
        output: All that it said.
    """
    kept = _KEPT.search(output)
    if kept is not None:
        name, version = kept["name"], kept["version"]
        return (
            f"It asks for another {name} than {version}, which the host has and keeps: another "
            "build may not fit its devices, or the other hosts. Leave it out of the file, loosen "
            "its range, or install that version on all hosts beforehand."
        )
    for words, what_to_do in _ADVICE.items():
        if re.search(words, output):
            return what_to_do
    return ""
