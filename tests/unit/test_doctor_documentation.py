"""docs/rules.md tells what the rules do."""

from __future__ import annotations

from pathlib import Path

from headrace.observe.doctor.documentation import documentation
from headrace.observe.doctor.rules import RULES

DOCS = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_is_up_to_date_and_has_every_rule():
    text = DOCS.read_text()
    assert text == documentation()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == sorted(RULES)
