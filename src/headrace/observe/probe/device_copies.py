"""Copies to the device: what `.to`, `.cuda` and `.copy_` bring there from the host's memory.

Trainers come down to these too: accelerate, Lightning and transformers' BatchEncoding call
`Tensor.to`. Libraries look these methods up on the class, to compare them with what an operation on
a tensor subclass is said to be, so the class still gives the originals. Calls through the class and
what makes tensors on the device at once, such as `torch.tensor(..., device=...)`, are not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

from headrace.core.import_hooks import after_import
from headrace.observe.probe.segments import DeviceCopyCounts

_Call = Callable[..., Any]


class CopyObserver:
    """The copies to the device that the script makes.

    Attributes:
        on_begin: Called before a copy; says whether it counts.
        on_end: Called after a copy that counts.
    """

    def __init__(self) -> None:
        self.on_begin: Callable[[], bool | None] = lambda: False
        self.on_end: Callable[[DeviceCopyCounts], None] = lambda _copies: None

    def hook(self, torch: ModuleType) -> None:
        """Watch tensors; torch is imported."""
        tensor, watches = torch.Tensor, _CopyMethods(torch, self)
        originals = {name: getattr(tensor, name) for name in ("to", "cuda", "copy_")}
        tensor.to = _WatchedMethod(originals["to"], watches.to(originals["to"]))
        tensor.cuda = _WatchedMethod(originals["cuda"], watches.cuda(originals["cuda"]))
        tensor.copy_ = _WatchedMethod(originals["copy_"], watches.copy_(originals["copy_"]))
        after_import("torch._dynamo.variables.tensor", lambda module: _restore(module, originals))


class _WatchedMethod:
    """A method that is watched when it is called on a tensor; the class gives the original."""

    __slots__ = ("_original", "_watched")

    def __init__(self, original: Any, watched: _Call) -> None:
        self._original = original
        self._watched = watched

    def __get__(self, tensor: object, owner: type | None = None) -> Any:
        return self._original if tensor is None else MethodType(self._watched, tensor)


class _CopyMethods:
    """Makes the watched methods. Most calls copy nothing, and are looked at in a few steps."""

    def __init__(self, torch: ModuleType, seen: CopyObserver) -> None:
        self._seen = seen
        self._tensor, self._device, self._dtype = torch.Tensor, torch.device, torch.dtype
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._as_plain = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - the way torch does

    def to(self, original: _Call) -> _Call:
        dtype, plain = self._dtype, self._plain

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

    def cuda(self, original: _Call) -> _Call:
        def cuda(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            if not self._is_on_host(tensor):
                return original(tensor, *args, **kwargs)
            return self._count(original, tensor, tensor, args, kwargs)

        return cuda

    def copy_(self, original: _Call) -> _Call:
        plain = self._plain

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
            with self._as_plain():  # a subclass is not to see that it was asked
                return bool(tensor.is_cpu)
        except Exception:  # noqa: BLE001 - what a script passes for a tensor may be any object
            return False

    def _is_pinned(self, tensor: Any) -> bool:
        try:
            with self._as_plain():
                return bool(tensor.is_pinned())
        except Exception:  # noqa: BLE001 - a subclass may not know
            return False

    def _is_copied(self, tensor: Any, target: Any) -> bool:
        """Whether `tensor.to(target)` copies from the host to a device."""
        kind = type(target)
        if kind is str:
            away = not target.startswith("cpu")
        elif kind is self._device:
            away = target.type != "cpu"
        elif isinstance(target, self._tensor):
            away = not self._is_on_host(target)
        else:
            away = kind is int  # a device's number; other objects are torch's to refuse
        return away and self._is_on_host(tensor)

    def _count(
        self, original: _Call, source: Any, tensor: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if not self._seen.on_begin():
            return original(tensor, *args, **kwargs)
        copies = DeviceCopyCounts()  # a call that raises has copied nothing
        try:
            result = original(tensor, *args, **kwargs)
            copies = DeviceCopyCounts(
                1, int(not self._is_pinned(source)), int(not _is_async(args, kwargs))
            )
        finally:
            self._seen.on_end(copies)
        return result


def _is_async(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `non_blocking` was given: by name, or as the first truth value."""
    given = next((each for each in args if type(each) is bool), None)
    return bool(kwargs.get("non_blocking", False) if given is None else given)


def _restore(module: ModuleType, originals: dict[str, Any]) -> None:
    """Let torch.compile find the originals where it looks past the class, at its attributes."""
    known = getattr(module, "all_tensor_attrs", None)
    if isinstance(known, dict):
        known.update(originals)


COPY_OBSERVER = CopyObserver()
