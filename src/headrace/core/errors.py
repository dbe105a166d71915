"""The exceptions that Headrace raises, as one tree, and hints for their messages.

    HeadraceError
    ├── UsageError              wrong arguments; exit code 2
    ├── StorageError
    │   ├── NotFoundError
    │   ├── DeniedError
    │   │   └── CredentialsError
    │   ├── ThrottledError
    │   ├── StorageTimeoutError
    │   ├── CorruptError
    │   ├── NoSpaceError
    │   └── ForkedClientError
    ├── DatasetError
    │   ├── BadSampleError
    │   └── TooManyBadSamplesError
    ├── LoaderError
    │   ├── NotSendableError
    │   ├── WorkerError
    │   └── LoaderTimeoutError
    ├── CheckpointError
    ├── RecordsError
    ├── LaunchError
    └── UnsupportedPlatformError

A message says what, where and what to do next. It never holds a credential or the query part of a
URL. Every error survives pickling, because workers send theirs to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class HeadraceError(Exception):
    """Base of all errors of Headrace."""

    exit_code = 1  # of the command line


class UsageError(HeadraceError, ValueError):
    """Wrong arguments, or a combination that is not possible; the message says what is."""

    exit_code = 2


class StorageError(HeadraceError, OSError):
    """A storage operation failed; the message names the URL and, where there is one, the range."""


class NotFoundError(StorageError):
    """The object, bucket or folder does not exist."""


class DeniedError(StorageError):
    """The store denied the request, or requires credentials."""


class CredentialsError(DeniedError):
    """The credentials are invalid, expired or missing, whatever is requested."""


class ThrottledError(StorageError):
    """The store kept asking for a slower rate until the deadline."""


class StorageTimeoutError(StorageError):
    """The store did not answer before the deadline."""


class CorruptError(StorageError):
    """The content differs from what was requested: wrong length, truncated, or wrong checksum."""


class NoSpaceError(StorageError):
    """The destination has no space left."""


class ForkedClientError(StorageError):
    """An object-store client of the parent process would be used in a forked child."""


class DatasetError(HeadraceError):
    """A dataset is missing, broken, or not the one that was expected."""


class BadSampleError(DatasetError):
    """One sample cannot be read or decoded: damaged data, not a failing store."""


class TooManyBadSamplesError(DatasetError):
    """The share of bad samples is above the allowed rate."""


class LoaderError(HeadraceError):
    """A loader cannot continue."""


class NotSendableError(LoaderError):
    """A dataset or its functions cannot be sent to workers; the message names the part."""


class WorkerError(LoaderError):
    """User code raised in a worker; the message carries the sample and the worker's traceback."""


class LoaderTimeoutError(LoaderError):
    """A batch did not arrive before the deadline."""


class CheckpointError(HeadraceError):
    """A checkpoint cannot be written, or is incomplete, or does not fit."""


class RecordsError(HeadraceError):
    """A run's records cannot be read; the message names the run and says what is there."""


class LaunchError(HeadraceError):
    """A job could not be started, or one of its ranks failed."""


class UnsupportedPlatformError(HeadraceError, ImportError):
    """Something was imported that needs another operating system or Python; it names both."""


def error_to_json(error: HeadraceError) -> dict[str, str]:
    """Return an error as a JSON object, with the class of this module that it has or extends."""
    kind = next(each for each in type(error).__mro__ if each.__module__ == __name__)
    return {"kind": kind.__name__, "message": str(error)}


def error_from_json(fields: Mapping[str, str]) -> HeadraceError:
    """Return the error of an `error_to_json` object."""
    kind = globals().get(fields["kind"])
    if not isinstance(kind, type) or not issubclass(kind, HeadraceError):
        kind = StorageError
    return kind(fields["message"])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean X?" with the closest known name, ignoring case; "" if none is close."""
    import difflib  # late: most processes make no such message

    lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f" Did you mean {lower[near[0]]}?" if near else ""


def check_choices(names: Iterable[object], known: Sequence[str], where: str) -> None:
    """Raise UsageError, which begins with `where`, for the first of the names that is not known."""
    for name in names:
        if name not in known:
            raise UsageError(f"{where}{name}{choices_hint(str(name), known)}")


def choices_hint(name: str, known: Sequence[str]) -> str:
    """Return the end of a message about a wrong name: the known names, and the closest one."""
    return f": it is one of {', '.join(known)}.{did_you_mean(name, known)}"
