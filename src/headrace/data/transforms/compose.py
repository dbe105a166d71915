"""Chains of transforms, and transforms applied to some members of a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace.core.errors import UsageError


class Compose:
    """Apply transforms one after the other.

    Each transform's result is the next one's argument; a tuple is passed as several arguments, so
    image and mask go through together.

    Attributes:
        transforms: The chain.
        wants_bytes: Members that the chain needs undecoded (see `OnMembers`).
        takes_bytes: Members that it accepts undecoded.
    """

    def __init__(self, transforms: list[Callable[..., Any]]) -> None:
        self.transforms = list(transforms)
        self.wants_bytes = _of_the_first(self.transforms, "wants_bytes")
        self.takes_bytes = _of_the_first(self.transforms, "takes_bytes")

    def __call__(self, *values: Any) -> Any:
        """Return the last transform's result; without transforms, the input."""
        for transform in self.transforms:
            value = transform(*values)
            values = value if isinstance(value, tuple) else (value,)
        return values if len(values) > 1 else values[0]


class OnMembers:
    """Apply a transform to some members of a sample and leave the others unchanged.

    `OnMembers("jpg", RandomResizedCrop(224))` changes the image; with
    `OnMembers(("jpg", "png"), JointScaleCropFlip((512, 1024)))` image and mask go together.

    Attributes:
        members: Names of the members, in the transform's order.
        transform: Takes as many values as there are members and returns as many.
        wants_bytes: The members that the dataset must leave undecoded, because the transform
            decodes them itself: its own class has an attribute `decodes`. (A subclass may expect
            other arguments, so it has to declare it again.)
        takes_bytes: The members that the dataset may leave undecoded where it knows that their
            files are sound: the class has an attribute `decodes_sound_files`.
    """

    def __init__(self, members: str | tuple[str, ...], transform: Callable[..., Any]) -> None:
        self.members = (members,) if isinstance(members, str) else tuple(members)
        self.transform = transform
        first: object = transform
        if isinstance(transform, Compose):
            first = next(iter(transform.transforms), None)
        declared = vars(type(first))
        none: frozenset[str] = frozenset()
        self.wants_bytes = frozenset(self.members) if declared.get("decodes") else none
        sound = declared.get("decodes_sound_files")
        self.takes_bytes = frozenset(self.members) if sound else none

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with these members replaced; UsageError: it lacks one of them."""
        missing = [name for name in self.members if name not in sample]
        if missing:
            raise UsageError(
                f"Sample {sample.get('__key__', '(unnamed)')} has no member {missing[0]!r}; it has "
                f"{', '.join(map(repr, sample))}. Every sample needs the members that a transform "
                "names; `headrace data info` lists those of the dataset."
            )
        result = self.transform(*(sample[name] for name in self.members))
        values = result if len(self.members) > 1 else (result,)
        return {**sample, **dict(zip(self.members, values, strict=True))}


def _of_the_first(transforms: Iterable[Callable[..., Any]], attribute: str) -> frozenset[str]:
    """Return the members for which their first transform declares the attribute."""
    found: set[str] = set()
    touched: set[str] = set()
    for transform in transforms:
        found.update(set(getattr(transform, attribute, ())) - touched)
        if not isinstance(transform, OnMembers):
            break  # it may change them all
        touched.update(transform.members)
    return frozenset(found)
