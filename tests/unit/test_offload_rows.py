"""Rows of auxiliary workers on their way."""

from __future__ import annotations

import json

import pytest

from headrace.cluster.offload.recorded import rows_told
from headrace.records.schema import BATCHES, STACKS


def body(number: int, width: int) -> bytes:
    return json.dumps({"now_ns": 5, "rows": [[number, [0] * width]]}).encode()


def test_rows_of_this_version_are_read():
    now_ns, rows = rows_told(body(BATCHES.number, len(BATCHES.fields)))
    assert now_ns == 5
    assert rows == [[BATCHES.number, [0] * len(BATCHES.fields)]]


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"nonsense",
        body(BATCHES.number, len(BATCHES.fields) + 1),
        body(STACKS.number, len(STACKS.fields)),  # not sent
        body(999, 3),
    ],
)
def test_what_another_version_sends_is_refused(content: bytes):
    with pytest.raises(ValueError):  # noqa: PT011 - of JSON's, or ours
        rows_told(content)
