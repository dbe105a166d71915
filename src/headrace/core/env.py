"""Every environment variable that Headrace reads, each declared once.

No other file touches `os.environ`; a test holds this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: The variable's name.
        meaning: What it says, in one line.
    """

    name: str
    meaning: str

    def get(self, default: str | None = None) -> str | None:
        """Return the value, or `default` where the variable is unset or empty."""
        return os.environ.get(self.name) or default

    def get_int(self, default: int | None = None) -> int | None:
        """Return the value as a whole number; raises UsageError where it is none."""
        text = self.get()
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise UsageError(
                f"{self.name}={text!r} is not a whole number ({self.meaning}). Unset or correct it."
            ) from None


RANK = Variable("RANK", "this process's number among all ranks (torchrun)")
WORLD_SIZE = Variable("WORLD_SIZE", "how many ranks there are (torchrun)")
LOCAL_RANK = Variable("LOCAL_RANK", "this process's number among the ranks of its host (torchrun)")
LOCAL_WORLD_SIZE = Variable("LOCAL_WORLD_SIZE", "how many ranks this host has (torchrun)")
RESTART_COUNT = Variable("TORCHELASTIC_RESTART_COUNT", "how often torchrun restarted the ranks")

RUN_DIR = Variable("HEADRACE_RUN_DIR", "the run folder, set by `headrace run`")
CACHE_DIR = Variable("HEADRACE_CACHE_DIR", "where disk caches lie unless a call names a folder")

XDG_CACHE_HOME = Variable("XDG_CACHE_HOME", "the user's cache folder")
AWS_ENDPOINT_URL = Variable("AWS_ENDPOINT_URL", "S3 endpoint other than Amazon's")
AWS_ENDPOINT_URL_S3 = Variable("AWS_ENDPOINT_URL_S3", "likewise, for S3 alone")
AWS_REGION = Variable("AWS_REGION", "S3 region")
AWS_DEFAULT_REGION = Variable("AWS_DEFAULT_REGION", "S3 region, older spelling")
AWS_PROFILE = Variable("AWS_PROFILE", "section of the AWS credentials and config files to use")
AWS_ACCESS_KEY_ID = Variable("AWS_ACCESS_KEY_ID", "S3 credentials: key")
AWS_CONFIG_FILE = Variable("AWS_CONFIG_FILE", "where the AWS config file lies")
AWS_SHARED_CREDENTIALS_FILE = Variable(
    "AWS_SHARED_CREDENTIALS_FILE", "where the AWS credentials file lies"
)


def child_environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment for a child, with `extra` set (None removes)."""
    environment = dict(os.environ)
    for name, value in (extra or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment
