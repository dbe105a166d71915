"""Ray itself: an extra, imported when a cluster is asked for."""

from __future__ import annotations

from types import ModuleType

from headrace.core.errors import UsageError


def import_ray() -> ModuleType:
    """Return Ray; raises UsageError, with the remedy, where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"A cluster needs Ray, which cannot be imported ({error}). "
            "Run `pip install 'headrace[ray]'`, on every host."
        ) from error
    return ray
