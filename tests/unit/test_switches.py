"""What a script sets in libraries, as a forkserver that serves many epochs has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headrace.data.loader.switches import set_switches, switches


@pytest.fixture(autouse=True)
def _left_as_it_was() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_a_default_dtype_goes_and_comes_back():
    usual = switches()
    torch.set_default_dtype(torch.float64)
    other = switches()
    set_switches(usual)
    assert torch.get_default_dtype() == torch.float32
    set_switches(other)
    assert torch.get_default_dtype() == torch.float64


def test_a_script_without_torch_changes_nothing():
    torch.set_default_dtype(torch.float64)
    set_switches({})
    assert torch.get_default_dtype() == torch.float64
