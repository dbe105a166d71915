"""The exceptions that Headrace raises, as one tree.

HeadraceError ├── UsageError wrong arguments, or numbers that do not fit; exit code 2 ├──
StorageError │ ├── NotFoundError │ ├── DeniedError │ │ └── CredentialsError refused, expired or
missing, whatever is requested │ ├── ThrottledError │ ├── StorageTimeoutError │ ├── CorruptError
short body, wrong length, truncated range, wrong checksum │ ├── NoSpaceError │ └── ForkedClientError
an object-store client reached a forked child ├── DatasetError no such dataset, a broken tar, an
index of another dataset │ ├── BadSampleError one sample cannot be read or decoded │ └──
TooManyBadSamplesError ├── LoaderError │ ├── NotSendableError dataset or functions that other
processes cannot have │ ├── WorkerError an exception in a worker: sample and worker's traceback │
└── LoaderTimeoutError ├── CheckpointError ├── RecordsError a run's records are missing, broken or
of a newer version └── LaunchError a job could not be started or its ranks failed

A message says what, where and what to do next. It never holds a credential or the query part of a
URL. Every error survives pickling, because workers hand theirs to the caller.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all errors of Headrace.

    Attributes:
        exit_code: What the command line exits with.
    """

    exit_code = 1


class UsageError(HeadraceError, ValueError):
    """The caller asked for something that cannot be; the message says what can."""

    exit_code = 2


class StorageError(HeadraceError, OSError):
    """A storage operation failed; the message names the URL and, where there is one, the range."""


class NotFoundError(StorageError):
    """The object, bucket or folder does not exist."""


class DeniedError(StorageError):
    """The store refused these credentials, or asks for some."""


class CredentialsError(DeniedError):
    """The credentials themselves are refused, expired or missing: no request would be answered."""


class ThrottledError(StorageError):
    """The store kept asking for a slower rate until the deadline."""


class StorageTimeoutError(StorageError):
    """The store did not answer before the deadline."""


class CorruptError(StorageError):
    """What arrived is not what was asked for: wrong length, cut short, or a wrong checksum."""


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
    """A loader cannot go on."""


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
