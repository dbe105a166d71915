"""Copies to a device, which is `meta` here: the one that is not the host's memory everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType

import pytest
import torch

from headrace.observe.probe.device_copies import CopyObserver
from headrace.observe.probe.step_segments import DeviceCopyCounts


class Log:
    def __init__(self) -> None:
        self.begun = 0
        self.copies: list[DeviceCopyCounts] = []
        self.places: list[tuple[str, int]] = []

    def begin(self) -> bool:
        self.begun += 1
        return True

    def end(self, copies: DeviceCopyCounts, place: tuple[str, int]) -> None:
        self.copies.append(copies)
        self.places.append(place)


@contextmanager
def hooked(is_in_use: Callable[[], bool] | None) -> Iterator[Log]:
    log = Log()
    seen = CopyObserver()
    seen.on_begin, seen.on_end = log.begin, log.end
    seen.hook(torch, is_in_use)
    try:
        yield log
    finally:
        for name in ("to", "cuda", "copy_"):
            delattr(torch.Tensor, name)


@pytest.fixture
def log() -> Iterator[Log]:
    with hooked(lambda: True) as log:
        yield log


BLOCKING, ASYNC = DeviceCopyCounts(1, 1, 1), DeviceCopyCounts(1, 1, 0)
META = torch.device("meta")


@pytest.mark.parametrize(
    ("copy", "counted"),
    [
        (lambda x: x.to("meta"), BLOCKING),
        (lambda x: x.to(META), BLOCKING),
        (lambda x: x.to(device="meta", dtype=torch.float16), BLOCKING),
        (lambda x: x.to(META, torch.float16, True), ASYNC),
        (lambda x: x.to(META, non_blocking=True), ASYNC),
        (lambda x: x.to(torch.empty(1, device=META)), BLOCKING),
        (lambda x: x.to(tensor=torch.empty(1, device=META), non_blocking=True), ASYNC),
        (lambda x: torch.empty(3, device=META).copy_(x), BLOCKING),
        (lambda x: torch.empty(3, device=META).copy_(x, non_blocking=True), ASYNC),
        (lambda x: torch.nn.Parameter(x).to(META), BLOCKING),
    ],
)
def test_copies_from_the_host_to_a_device_are_counted(
    log: Log, copy: Callable[[torch.Tensor], torch.Tensor], counted: DeviceCopyCounts
):
    assert copy(torch.zeros(3)).is_meta
    assert log.copies == [counted]
    assert log.places == [(__file__, copy.__code__.co_firstlineno)]


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.to(torch.float16),
        lambda x: x.to(dtype=torch.float16),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.device("cpu"), torch.float16),
        lambda x: x.to(torch.ones(1, dtype=torch.float64)),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: x.new_empty(3, device=META).to(META),
        lambda x: x.new_empty(3, device=META).to(torch.float16),
        lambda x: x.new_empty(3, device=META).copy_(torch.empty(3, device=META)),
    ],
)
def test_what_stays_where_it_is_is_not_counted(log: Log, use: Callable[[torch.Tensor], object]):
    use(torch.zeros(3))
    assert (log.begun, log.copies) == (0, [])


def test_a_copy_that_torch_refuses_raises_as_ever_and_is_none(log: Log):
    with pytest.raises(TypeError):
        torch.zeros(3).to("meta", "no dtype")
    with pytest.raises((TypeError, AttributeError)):
        torch.zeros(3).copy_("no tensor")
    assert (log.begun, log.copies) == (1, [DeviceCopyCounts()])


def test_the_class_gives_the_originals(log: Log):
    """Libraries compare what an operation on a subclass claims to be with what the class has."""
    assert torch.Tensor.to is torch._C.TensorBase.to
    assert torch.Tensor.copy_ is torch._C.TensorBase.copy_
    assert torch.overrides.is_tensor_method_or_property(torch._C.TensorBase.to)
    assert torch.Tensor.to(torch.zeros(3), "meta").is_meta
    assert log.copies == []


def test_a_subclass_is_asked_for_nothing_but_the_copy(log: Log):
    asked = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    copied = torch.zeros(3).as_subclass(Logged).to("meta", non_blocking=True)
    assert isinstance(copied, Logged)
    assert asked == [torch.Tensor.to]
    assert log.copies == [ASYNC]


def test_compiled_and_scripted_code_may_copy(log: Log):
    def half(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, dtype=torch.float16).copy_(x.to(torch.float64).to("cpu"))

    x = torch.arange(3.0)
    assert torch.equal(torch.compile(half, backend="eager", fullgraph=True)(x), half(x))
    assert torch.equal(torch.jit.script(half)(x), half(x))


COMPLEX = torch.ones(3, dtype=torch.complex64)


@pytest.fixture
def _warns_always() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.usefixtures("_warns_always")
@pytest.mark.parametrize(
    ("is_in_use", "warns"),
    [
        (False, lambda: COMPLEX.to(torch.float32)),
        (False, lambda: COMPLEX.to("cpu", torch.float32)),
        (False, lambda: torch.empty(3).copy_(COMPLEX)),
        (True, lambda: torch.empty(3).copy_(COMPLEX)),
    ],
)
def test_a_warning_of_torch_names_the_line_of_the_script(
    is_in_use: bool, warns: Callable[[], torch.Tensor]
):
    with (
        hooked(lambda: is_in_use),
        pytest.warns(UserWarning, match="discards the imaginary part") as seen,
    ):
        warns()
    assert [(each.filename, each.lineno) for each in seen] == [
        (__file__, warns.__code__.co_firstlineno)
    ]


def test_what_cannot_copy_to_a_device_is_called_without_a_frame_between(log: Log):
    there, here = torch.empty(3, device=META), torch.empty(3)
    for method in (there.to, there.cuda, here.copy_):
        assert not isinstance(method, MethodType)
    assert isinstance(here.to, MethodType)  # as it may


def test_copies_count_from_when_an_accelerator_is_in_use():
    used: list[bool] = []
    x = torch.zeros(3)
    with hooked(lambda: bool(used)) as log:
        assert x.to(META).is_meta
        assert (log.begun, log.copies) == (0, [])
        used.append(True)
        assert x.to(META).is_meta
        assert log.copies == [BLOCKING]


@pytest.mark.usefixtures("_warns_always")
def test_an_accelerator_is_in_use_once_its_library_is_initialised(monkeypatch: pytest.MonkeyPatch):
    initialised: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(initialised))
    with hooked(None) as log:
        with pytest.warns(UserWarning, match="discards the imaginary part") as seen:
            COMPLEX.to(torch.float32)
        assert [each.filename for each in seen] == [__file__]
        assert torch.zeros(3).to(META).is_meta
        assert log.begun == 0
        initialised.append(True)
        assert torch.zeros(3).to(META).is_meta
        assert log.copies == [BLOCKING]
        initialised.clear()
        name = "_privateuse1_backend_name"
        monkeypatch.setattr(torch.utils.backend_registration, name, "npu")
        assert torch.zeros(3).to(META).is_meta
        assert log.copies == [BLOCKING, BLOCKING]
