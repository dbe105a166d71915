"""JSON that any reader takes: numbers that it does not know are null."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any, **options: Any) -> str:
    """Return a value as `json.dumps` does with these options; NaN and infinity become null."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
