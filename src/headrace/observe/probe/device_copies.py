"""Copies of a script's tensors to a device: which calls they are, and how they are made.

Copies to the device are calls of `.to`, `.cuda` and `.copy_` on tensors in the host's memory.
Trainers end up in these too: accelerate, Lightning and transformers' BatchEncoding call
`Tensor.to`. Libraries look these methods up on the class to compare them with the function passed
to a tensor subclass, so the class still returns the originals. Calls through the class, and
functions that create tensors on the device such as `torch.tensor(..., device=...)`, are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

from headrace.core.import_hooks import after_import
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.step_clock import NO_COPIES, CopyPlace, DeviceCopyCounts

_Function = Callable[..., Any]


class CopyObserver:
    """Observer of the script's copies to the device; `on_begin` returns whether a copy counts."""

    def __init__(self) -> None:
        self.on_begin: Callable[[], bool | None] = lambda: False
        self.on_end: Callable[[DeviceCopyCounts, CopyPlace], None] = lambda _copies, _place: None

    def hook(self, torch: ModuleType) -> None:
        """Hook the methods of torch.Tensor."""
        methods = _CopyMethods(torch, self)
        originals = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "copy_")}
        for name, original in originals.items():
            setattr(torch.Tensor, name, _WatchedMethod(original, getattr(methods, name)(original)))
        after_import("torch._dynamo.variables.tensor", lambda module: _restore(module, originals))


class _WatchedMethod:
    """A method that is observed when called on a tensor; the class returns the original."""

    __slots__ = ("_original", "_watched")

    def __init__(self, original: Any, watched: _Function) -> None:
        self._original = original
        self._watched = watched

    def __get__(self, tensor: object, owner: type | None = None) -> Any:
        return self._original if tensor is None else MethodType(self._watched, tensor)


class _CopyMethods:
    """Makes the observed methods. Most calls copy nothing, so they are dismissed in few steps."""

    def __init__(self, torch: ModuleType, observer: CopyObserver) -> None:
        self._observer = observer
        self._tensor, self._device, self._dtype = torch.Tensor, torch.device, torch.dtype
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._as_plain = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - as torch does

    def to(self, original: _Function) -> _Function:
        dtype, plain = self._dtype, self._plain

        @skipped_by_warnings
        def to(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
            if (
                target is None
                or type(target) is dtype
                or (type(tensor) in plain and not tensor.is_cpu)
                or not self._is_copied(tensor, target)
            ):
                return original(tensor, *args, **kwargs)
            return self._count(original, tensor, tensor, args, kwargs)

        return to

    def cuda(self, original: _Function) -> _Function:
        @skipped_by_warnings
        def cuda(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not self._is_on_host(tensor):
                return original(tensor, *args, **kwargs)
            return self._count(original, tensor, tensor, args, kwargs)

        return cuda

    def copy_(self, original: _Function) -> _Function:
        plain = self._plain

        @skipped_by_warnings
        def copy_(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if type(tensor) in plain and tensor.is_cpu:
                return original(tensor, *args, **kwargs)
            source = args[0] if args else kwargs.get("other")
            if self._is_on_host(tensor) or not self._is_on_host(source):
                return original(tensor, *args, **kwargs)
            return self._count(original, source, tensor, args, kwargs)

        return copy_

    def _is_on_host(self, tensor: Any) -> bool:
        if type(tensor) in self._plain:
            return bool(tensor.is_cpu)
        try:
            with self._as_plain():  # a subclass must not notice this call
                return bool(tensor.is_cpu)
        except Exception:  # noqa: BLE001 - a script may pass any object for a tensor
            return False

    def _is_pinned(self, tensor: Any) -> bool:
        try:
            if type(tensor) in self._plain:
                return bool(tensor.is_pinned())
            with self._as_plain():
                return bool(tensor.is_pinned())
        except Exception:  # noqa: BLE001 - a subclass may not implement it
            return False

    def _is_copied(self, tensor: Any, target: Any) -> bool:
        """Return whether `tensor.to(target)` copies from the host to a device."""
        kind = type(target)
        if kind is str:
            to_device = not target.startswith("cpu")
        elif kind is self._device:
            to_device = target.type != "cpu"
        elif isinstance(target, self._tensor):
            to_device = not self._is_on_host(target)
        else:
            to_device = kind is int  # a device's number; torch rejects other objects
        return to_device and self._is_on_host(tensor)

    @skipped_by_warnings
    def _count(
        self, original: _Function, source: Any, tensor: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if not self._observer.on_begin():
            return original(tensor, *args, **kwargs)
        copies = NO_COPIES  # a call that raises has copied nothing
        try:
            result = original(tensor, *args, **kwargs)
            copies = DeviceCopyCounts(
                1, int(not self._is_pinned(source)), int(not _is_async(args, kwargs))
            )
        finally:
            caller = sys._getframe(2)  # noqa: SLF001 - of the watched method
            self._observer.on_end(copies, (caller.f_code.co_filename, caller.f_lineno))
        return result


def _is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether `non_blocking` was passed: by name, or as the first bool."""
    given = next((value for value in args if type(value) is bool), None)
    return bool(kwargs.get("non_blocking", False) if given is None else given)


def _restore(module: ModuleType, originals: dict[str, Any]) -> None:
    """Let torch.compile find the originals in its own table of tensor attributes."""
    known = getattr(module, "all_tensor_attrs", None)
    if isinstance(known, dict):
        known.update(originals)


COPY_OBSERVER = CopyObserver()
