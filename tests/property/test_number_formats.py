"""Numbers and sizes as text: within half a percent, and without an exponent unless huge."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.units import format_bytes, parse_bytes
from headrace.report.formatting import format_number


@given(st.integers(0, 10**18) | st.floats(0, 1e18))
@example(1000 * 1024)  # between a thousand and the next suffix
@example(1023.9 * 1024)
@example(999.7 * 1024)
def test_a_size_reads_back(size_bytes: float):
    text = format_bytes(size_bytes)
    assert "e" not in text
    assert parse_bytes(text) == pytest.approx(size_bytes, rel=0.005, abs=1)


@given(st.floats(1e-4, 1e15))
@example(999.7)
@example(1000.0)
def test_a_number_reads_back(value: float):
    text = format_number(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.0051)


@given(st.floats(1e17, 1e308) | st.floats(-1e308, -1e17) | st.just(float("inf")))
def test_a_huge_number_is_short_and_reads_back(value: float):
    text = format_number(value)
    assert len(text) <= 10
    assert float(text) == pytest.approx(value, rel=0.0051)
