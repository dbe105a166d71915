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
    """

    def __init__(self, transforms: list[Callable[..., Any]]) -> None:
        self.transforms = list(transforms)

    @property
    def wants_bytes(self) -> frozenset[str]:
        """Members that the chain, as it is now, needs undecoded (see `OnMembers`)."""
        return _of_the_first(self.transforms, "wants_bytes")

    @property
    def takes_bytes(self) -> frozenset[str]:
        """Members that it accepts undecoded."""
        return _of_the_first(self.transforms, "takes_bytes")

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
    """

    def __init__(self, members: str | tuple[str, ...], transform: Callable[..., Any]) -> None:
        self.members = (members,) if isinstance(members, str) else tuple(members)
        self.transform = transform

    @property
    def wants_bytes(self) -> frozenset[str]:
        """The members that the dataset must leave undecoded, as the transform decodes them itself.

        Its own class has an attribute `decodes`. (A subclass may expect other arguments, so it has
        to declare it again.)
        """
        return self._members_if_first("decodes")

    @property
    def takes_bytes(self) -> frozenset[str]:
        """The members that the dataset may leave undecoded where it knows their files as sound.

        The transform's class has an attribute `decodes_sound_files`.
        """
        return self._members_if_first("decodes_sound_files")

    def _members_if_first(self, declared: str) -> frozenset[str]:
        """Return the members if the class of the first transform, as it is now, declares that."""
        first: object = self.transform
        if isinstance(first, Compose):
            first = next(iter(first.transforms), None)
        return frozenset(self.members if vars(type(first)).get(declared) else ())

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
