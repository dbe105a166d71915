"""Which parts of a model repeat, as a transformer's layers do."""

from __future__ import annotations

from collections import Counter

from torch import nn


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that stand in a list or sequence beside others of their class.

    Only modules made of others, with parameters: a row of convolutions is no row of blocks. Lists
    in lists are looked through, so the layers of each stage of a staged model are found.
    """
    found: list[nn.Module] = []
    _collect(model, found)
    return found


def _collect(parent: nn.Module, found: list[nn.Module]) -> None:
    is_row = isinstance(parent, (nn.ModuleList, nn.Sequential))
    kinds = Counter(type(child) for child in parent.children()) if is_row else Counter()
    for child in parent.children():
        if kinds[type(child)] > 1 and _is_block(child):
            found.append(child)
        else:
            _collect(child, found)


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        return False
    return any(True for _ in module.children()) and any(True for _ in module.parameters())
