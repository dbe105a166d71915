"""What a script sets in libraries, as a forkserver that serves many epochs has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from headrace.data.loader.library_state import apply_library_settings, library_settings


@pytest.fixture(autouse=True)
def _left_as_it_was() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def test_a_default_dtype_goes_and_comes_back():
    usual = library_settings()
    torch.set_default_dtype(torch.float64)
    other = library_settings()
    apply_library_settings(usual)
    assert torch.get_default_dtype() == torch.float32
    apply_library_settings(other)
    assert torch.get_default_dtype() == torch.float64


def test_a_script_without_torch_changes_nothing():
    torch.set_default_dtype(torch.float64)
    apply_library_settings({})
    assert torch.get_default_dtype() == torch.float64
