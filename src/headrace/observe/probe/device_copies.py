"""Copies of a script's tensors to a device: which calls they are, and how they are made.

Copies to the device are calls of `.to`, `.cuda` and `.copy_` on tensors in the host's memory.
Trainers end up in these too: accelerate, Lightning and transformers' BatchEncoding call
`Tensor.to`. Libraries look these methods up on the class to compare them with the function passed
to a tensor subclass, so the class still returns the originals. Calls through the class, and
functions that create tensors on the device such as `torch.tensor(..., device=...)`, are not seen.

A tensor returns torch's own method, too, where the call cannot be such a copy, above all as long as
no accelerator is in use: torch gives its own warnings, those of its C++ code, the place of the
innermost Python frame, which would be the observing function's here. That function cannot be
anything but a Python frame, as it must see the arguments before the call and act after it: so
while an accelerator is in use, warnings of `.to` and `.cuda` on the host's tensors and of `.copy_`
into the device's name this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any

from headrace.core.import_hooks import after_import
from headrace.core.warning_frames import skipped_by_warnings
from headrace.observe.probe.step_clock import CopyPlace
from headrace.observe.probe.step_segments import NO_COPIES, DeviceCopyCounts

_Function = Callable[..., Any]


class CopyObserver:
    """Observer of the script's copies to the device; `on_begin` returns whether a copy counts."""

    def __init__(self) -> None:
        self.on_begin: Callable[[], bool | None] = lambda: False
        self.on_end: Callable[[DeviceCopyCounts, CopyPlace], None] = lambda _copies, _place: None

    def hook(self, torch: ModuleType, is_in_use: Callable[[], bool] | None = None) -> None:
        """Hook the methods of torch.Tensor; `is_in_use`: whether an accelerator is, by default."""
        methods, plain = _CopyMethods(torch, self), {torch.Tensor, torch.nn.Parameter}
        is_in_use = is_in_use or _device_use(torch)
        originals = {name: getattr(torch.Tensor, name) for name in ("to", "cuda", "copy_")}
        for name, original in originals.items():
            method = _WatchedMethod(
                original, getattr(methods, name)(original),
                # The first `.cuda` is a copy, too, and raises where there is no accelerator.
                (lambda: True) if name == "cuda" else is_in_use,
                plain, from_host=name != "copy_",
            )  # fmt: skip
            setattr(torch.Tensor, name, method)
        after_import("torch._dynamo.variables.tensor", lambda module: _restore(module, originals))


def _device_use(torch: ModuleType) -> Callable[[], bool]:
    """Return a function: whether this process has used an accelerator. It initialises none.

    The first `.to("cuda")` of a process is not counted, as the device is in use only from then on:
    it is that of a model's first parameter, or of another tensor before the first batch.
    """
    is_cuda_initialized = torch.cuda.is_initialized
    is_xpu_initialized = torch.xpu.is_initialized
    names = vars(torch.utils.backend_registration)
    others: list[ModuleType] = []
    for package in ("torch_xla", "habana_frameworks.torch"):  # of devices that are none of these
        after_import(package, others.append)

    def is_in_use() -> bool:
        return bool(
            is_cuda_initialized()
            or is_xpu_initialized()
            or others
            # A backend outside of torch, such as torch_npu, renames this one as it is imported.
            or names.get("_privateuse1_backend_name", "privateuseone") != "privateuseone"
        )

    return is_in_use


class _WatchedMethod:
    """A method that is observed where its call on a tensor may copy to a device.

    `plain`: the types that can be asked where they are without calling a subclass's functions.
    `from_host`: the tensor of such a copy is on the host, else on the device.
    """

    __slots__ = ("_from_host", "_is_in_use", "_original", "_plain", "_watched")

    def __init__(
        self, original: Any, watched: _Function, is_in_use: Callable[[], bool], plain: set[type], *,
        from_host: bool,
    ) -> None:  # fmt: skip
        self._original = original
        self._watched = watched
        self._is_in_use = is_in_use
        self._plain = plain
        self._from_host = from_host

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        if tensor is None:
            return self._original
        # All in this frame, as each call of a script's comes through here.
        if not self._is_in_use() or (
            type(tensor) in self._plain and tensor.is_cpu is not self._from_host
        ):
            return self._original.__get__(tensor, owner)
        return MethodType(self._watched, tensor)


class _CopyMethods:
    """Makes the observed methods."""

    def __init__(self, torch: ModuleType, observer: CopyObserver) -> None:
        self._observer = observer
        self._tensor, self._device, self._dtype = torch.Tensor, torch.device, torch.dtype
        self._plain = {torch.Tensor, torch.nn.Parameter}
        self._as_plain = torch._C.DisableTorchFunctionSubclass  # noqa: SLF001 - as torch does

    def to(self, original: _Function) -> _Function:
        dtype = self._dtype

        @skipped_by_warnings
        def to(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
            target = args[0] if args else kwargs.get("device", kwargs.get("tensor"))
            if target is None or type(target) is dtype or not self._is_copied(tensor, target):
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
        @skipped_by_warnings
        def copy_(tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
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
