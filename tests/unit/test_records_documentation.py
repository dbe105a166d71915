"""docs/records.md says what the registry does."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation import records_page

from headrace.records import system_table
from headrace.records.schema import TABLES, TABLES_BY_NAME, TABLES_BY_NUMBER

DOCS = Path(__file__).parents[2] / "docs" / "records.md"


def test_the_documentation_is_up_to_date():
    assert DOCS.read_text() == records_page()


def test_numbers_names_and_columns_are_their_own():
    assert len(TABLES_BY_NUMBER) == len(TABLES_BY_NAME) == len(TABLES)
    assert system_table.NAME not in TABLES_BY_NAME
    for table in TABLES:
        assert len(set(table.columns)) == len(table.columns)


def test_columns_of_a_host_are_described_and_ordered():
    names = ["gpu_1_power_w", "core_10_percent", "load_1_minute", "core_2_percent", "t_ns"]
    assert system_table.sorted_columns(names) == [
        "t_ns", "core_2_percent", "core_10_percent", "load_1_minute", "gpu_1_power_w"
    ]  # fmt: skip
    assert system_table.column_description("core_10_percent").meaning.startswith("of this core")
    with pytest.raises(KeyError):
        system_table.column_description("gpu_1_hopes")
