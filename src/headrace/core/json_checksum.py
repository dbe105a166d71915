"""Checksums of JSON objects, stored within them: they show a flipped bit where JSON does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.core.lazy import blake2b

CHECKSUM = "checksum"
"""The field that holds the checksum of all others."""

_SIZE_BYTES = 16


def fields_checksum(fields: Mapping[str, Any]) -> str:
    """Return a checksum of an object's fields in hexadecimal digits, whatever their order.

    It is that of the fields as JSON has them: a tuple counts as a list. Keys are texts: others have
    another order once they are read back.
    """
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), _SIZE_BYTES).hex()


def take_checksum(fields: dict[str, Any]) -> None:
    """Take the checksum, if there is one, out of fields; raise ValueError where it differs.

    Files of earlier versions have none.
    """
    checksum = fields.pop(CHECKSUM, None)
    if checksum is not None and checksum != fields_checksum(fields):
        raise ValueError("its checksum differs")
