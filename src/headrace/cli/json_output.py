"""The JSON that verbs print with --json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from headrace.core.json_text import json_text


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object."""
    typer.echo(json_text(content, indent=1, ensure_ascii=False))
