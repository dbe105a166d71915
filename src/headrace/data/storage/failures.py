"""What went wrong, said once: the object-store client's errors as ours.

The client's own messages hold whole URLs (with presigned queries) and the server's answers (with
key ids and strings to sign), so none of their text is passed on; only words from here and the
server's status and error code are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from obstore.exceptions import InvalidPathError

from headrace.core import env
from headrace.core.errors import (
    CorruptError,
    CredentialsError,
    DeniedError,
    NotFoundError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)


class Fault(Enum):
    """The kinds of failure."""

    NOT_FOUND = "not found"
    DENIED = "denied"
    CREDENTIALS = "credentials refused"
    THROTTLED = "throttled"
    TIMED_OUT = "timed out"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    REFUSED = "refused"

    @property
    def passing(self) -> bool:
        """Whether asking again may help."""
        return self not in {Fault.NOT_FOUND, *DENIALS, Fault.REFUSED}


DENIALS = frozenset({Fault.DENIED, Fault.CREDENTIALS})
"""What other credentials may mend."""


ERRORS: dict[Fault, type[StorageError]] = {
    Fault.NOT_FOUND: NotFoundError,
    Fault.DENIED: DeniedError,
    Fault.CREDENTIALS: CredentialsError,
    Fault.THROTTLED: ThrottledError,
    Fault.TIMED_OUT: StorageTimeoutError,
    Fault.CORRUPT: CorruptError,
    Fault.UNREACHABLE: StorageTimeoutError,
    Fault.BROKEN: StorageTimeoutError,
    Fault.REFUSED: StorageError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed request.

    Attributes:
        fault: Which kind.
        detail: What happened, in words that are safe to print.
    """

    fault: Fault
    detail: str


NO_FILES_NAME = "an object's key has an empty, '.' or '..' part, or a control character in it"
"""What the client refuses to list, because no file could have such a name."""


class WrongAnswerError(Exception):
    """An answer that is not what was asked for; its text is safe to print."""


_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_UNEXPECTED = re.compile(r"Requested (\d+\.\.\d+), got (\d+\.\.\d+)")
_THROTTLING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
_CREDENTIALS_CODES = {
    "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch", "TokenRefreshRequired",
}  # fmt: skip
_PASSING_CODES = {"RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted"}

# An error's body follows its namespace's URL without a blank, so "<" ends a URL too.
_URL = re.compile(r'https?://[^\s<>"]+')
_METADATA_HOSTS = {"169.254.169.254", "metadata.google.internal", "metadata"}
_METADATA_PATHS = (
    "latest/api/token",
    "latest/meta-data",
    "computeMetadata",
    "metadata/identity",
)

# Words in the client's own description of a failed transfer, and what they mean.
_TRANSFER = (
    ("dns error", Fault.UNREACHABLE, "the host name does not resolve"),
    ("ConnectionRefused", Fault.UNREACHABLE, "nothing listens at the endpoint"),
    ("NetworkUnreachable", Fault.UNREACHABLE, "the network is unreachable"),
    ("HostUnreachable", Fault.UNREACHABLE, "the host is unreachable"),
    ("InvalidCertificate", Fault.REFUSED, "the server's certificate is not trusted"),
    ("certificate", Fault.REFUSED, "the server's certificate is not trusted"),
    ("URL scheme is not allowed", Fault.REFUSED, "the endpoint is not https"),
    ("BareRedirect", Fault.REFUSED, "the bucket is in another region; set AWS_REGION"),
    ("NotPartial", Fault.REFUSED, "the server ignores ranges"),
    ("RangeNotSupported", Fault.REFUSED, "the server ignores ranges"),
    ("IncompleteBody", Fault.CORRUPT, "the answer was cut short"),
    ("TimedOut", Fault.TIMED_OUT, "no answer in time"),
    ("ConnectionReset", Fault.BROKEN, "the connection was reset"),
    ("IncompleteMessage", Fault.BROKEN, "the connection was closed without an answer"),
    ("ChannelClosed", Fault.BROKEN, "the connection was closed without an answer"),
    ("BrokenPipe", Fault.BROKEN, "the connection was closed"),
    ("HttpError", Fault.BROKEN, "the transfer failed"),
    ("Header", Fault.CORRUPT, "the answer lacks a header that every store sends"),
)


def describe_failure(error: BaseException) -> Failure:
    """Return what an exception of the client, or of ours, means."""
    if isinstance(error, WrongAnswerError):
        return Failure(fault=Fault.CORRUPT, detail=str(error))
    if isinstance(error, TimeoutError):
        return Failure(fault=Fault.TIMED_OUT, detail="no answer in time")
    if isinstance(error, InvalidPathError):
        return Failure(fault=Fault.REFUSED, detail=NO_FILES_NAME)
    told = str(error)
    text = _URL.sub("", told)  # it holds the object's name, whose words mean nothing
    status = _STATUS.search(text)
    failure = _from_status(int(status[1]), _CODE.search(text)) if status else None
    # A busy host will offer them again; to all else that it answers there is no other answer.
    if any(map(_asks_the_host, _URL.findall(told))) and not (failure and failure.fault.passing):
        detail = "no credentials were found, and the host offers none"
        return Failure(fault=Fault.CREDENTIALS, detail=detail)
    if failure:
        return failure
    return _from_words(text) or Failure(
        fault=Fault.NOT_FOUND if isinstance(error, FileNotFoundError) else Fault.REFUSED,
        detail=f"the client failed ({type(error).__name__})",
    )


def _asks_the_host(url: str) -> bool:
    """Tell whether a URL is where a host offers credentials, not an object of such a name."""
    host, _, path = url.partition("://")[2].partition("/")
    if not path.startswith(_METADATA_PATHS):
        return False
    named = (env.AWS_METADATA_ENDPOINT.get(), env.AWS_EC2_METADATA_SERVICE_ENDPOINT.get())
    at = {each.partition("://")[2].partition("/")[0] for each in named if each}
    return host in _METADATA_HOSTS or host in at


def _from_words(text: str) -> Failure | None:
    unexpected = _UNEXPECTED.search(text)
    if unexpected:
        detail = f"bytes {unexpected[1]} were asked for and {unexpected[2]} came"
        return Failure(fault=Fault.CORRUPT, detail=detail)
    for word, fault, detail in _TRANSFER:
        if word in text:
            return Failure(fault=fault, detail=detail)
    return None


def _from_status(status: int, found: re.Match[str] | None) -> Failure:
    code = found[1] if found else ""
    detail = f"the server answered {status} {code}".rstrip()
    if status in {429, 503} or code in _THROTTLING_CODES:
        fault = Fault.THROTTLED
    elif status == 401 or code in _CREDENTIALS_CODES:
        fault = Fault.CREDENTIALS
    elif status == 403 or code == "AccessDenied":
        fault = Fault.DENIED
    elif status == 404:
        fault, detail = Fault.NOT_FOUND, _missing(code)
    elif status == 416:
        fault, detail = Fault.CORRUPT, "the object is shorter than the range"
    elif status == 412:
        fault, detail = Fault.CORRUPT, "the object changed while it was read"
    elif status in {501, 505}:
        fault, detail = Fault.REFUSED, f"{detail}: it cannot do this"
    elif status >= 500 or status == 408 or code in _PASSING_CODES:
        fault = Fault.BROKEN
    else:
        fault = Fault.REFUSED
    return Failure(fault=fault, detail=detail)


def _missing(code: str) -> str:
    return "the bucket does not exist" if code == "NoSuchBucket" else "it does not exist"
