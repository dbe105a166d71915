"""Holding JSON against the schemas in docs/."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def read_schema(name: str) -> dict[str, Any]:
    return json.loads((DOCS / name).read_text(encoding="utf-8"))


def check(value: Any, schema: dict[str, Any], where: str = "$") -> None:
    """Hold a value against the parts of JSON Schema that the schemas in docs/ use."""
    known = {"$schema", "title", "description", "type", "required", "additionalProperties"}
    assert schema.keys() <= known | {"properties", "items", "enum", "minimum", "maximum"}
    if "enum" in schema:
        assert value in schema["enum"], where
        return
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert isinstance(value, tuple(TYPES[name] for name in allowed if name != "number")) or (
        "number" in allowed and isinstance(value, (int, float))
    ), (where, value)
    assert not isinstance(value, bool), where
    if isinstance(value, (int, float)):
        assert math.isfinite(value), where
        assert schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf), where
    if isinstance(value, list):
        for number, item in enumerate(value):
            check(item, schema["items"], f"{where}[{number}]")
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys(), where
        properties, others = schema.get("properties", {}), schema["additionalProperties"]
        for name, item in value.items():
            assert name in properties or others is not False, f"{where}.{name}"
            check(item, properties.get(name, others), f"{where}.{name}")
