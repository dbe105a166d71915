"""Import hooks: functions that are called once a module has been imported by others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from headrace.core.warning_frames import skipped_by_warnings

Hook = Callable[[ModuleType], None]
FAILED_HOOKS: list[str] = []
"""Errors of hooks in this process."""


def after_import(name: str, hook: Hook) -> None:
    """Call `hook` with the module `name` at once if it is imported, else after its import."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _call_hook(hook, module)
        return
    finder = next((each for each in sys.meta_path if isinstance(each, _HookFinder)), None)
    if finder is None:
        finder = _HookFinder()
        sys.meta_path.insert(0, finder)
    finder.hooks.setdefault(name, []).append(hook)


def _call_hook(hook: Hook, module: ModuleType) -> None:
    """Call a hook; its failure must not make the script's import fail."""
    try:
        hook(module)
    except Exception as error:  # noqa: BLE001 - such as a hook for another version of torch
        FAILED_HOOKS.append(f"{module.__name__}: {type(error).__name__}: {error}")


class _HookFinder(MetaPathFinder):
    """A finder that gets modules with hooks from the other finders, and wraps their loaders."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = {}
        self._finding: set[str] = set()

    @skipped_by_warnings
    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec, with a loader that calls the hooks."""
        if name not in self.hooks or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = find_spec(name)
        finally:
            self._finding.discard(name)
        if spec is None or spec.loader is None:
            return None
        # The hooks stay: a spec may be requested only to check whether the module exists.
        spec.loader = _HookedLoader(spec.loader, self.hooks)
        return spec


class _HookedLoader(Loader):
    """A module's own loader, which then calls the module's hooks."""

    def __init__(self, loader: Loader, hooks: dict[str, list[Hook]]) -> None:
        self._loader = loader
        self._hooks = hooks

    @skipped_by_warnings
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._loader.create_module(spec)

    @skipped_by_warnings
    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own loader, execute the module, then call the hooks."""
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for hook in self._hooks.pop(module.__name__, []):
            _call_hook(hook, module)
