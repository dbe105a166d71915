"""Buckets as folders: on Vertex AI `/gcs/BUCKET` is there, and scripts name paths in it.

Cloud Storage FUSE shows it there (cloud.google.com/vertex-ai/docs/training, "Mount Cloud Storage").
Which buckets a script means, its arguments say, or its own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import UsageError
from headrace.core.placed import may_place
from headrace.data.mounts import NoMountError
from headrace.launch.channels.channel_flags import limit_of
from headrace.launch.channels.mounted import Mounts
from headrace.launch.contract_flags import ContractOptions
from headrace.launch.told import tell

_ROOT = Path("/gcs")
# A bucket's name: cloud.google.com/storage/docs/buckets, "Naming". Scripts write /gcs for gs:/.
_NAME = r"([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?![A-Za-z0-9._-])"
_BY_PATH = re.compile(rf"(?<![\w/.-])/gcs/{_NAME}")
_BY_URL = re.compile(rf"\b(?:gs|gcs)://{_NAME}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketFolders:
    """Such folders of one host.

    Attributes:
        places: Where each lies, by the path at which a script sees it.
        mounts: What shows them.
    """

    places: Mapping[str, str]
    mounts: Mounts


def bucket_folders(
    options: ContractOptions, script: str, arguments: Iterable[str], folder: Path
) -> BucketFolders:
    """Show the buckets that a script on Vertex AI means, read only, until the job's end.

    Where that cannot be, it is told.

    Args:
        options: What the script is told.
        script: Its path, or a module's name.
        arguments: Its own.
        folder: Where mounts lie; made.
    """
    mounts = Mounts(folder, limit_of(options.cache_limit) if options.cache_limit else None)
    places: dict[str, str] = {}
    for bucket in sorted(_meant(options, script, arguments)):
        place = _ROOT / bucket
        if place.exists():  # others show it
            continue
        try:
            places[str(place)] = str(_shown(bucket, place, mounts))
        except (NoMountError, UsageError, OSError) as error:
            tell(
                f"headrace: {place} is not there, as it would be on Vertex AI: {error}. Give the "
                f"data as --channel training=gs://{bucket}/..., and read AIP_TRAINING_DATA_URI.\n"
            )
    return BucketFolders(places=places, mounts=mounts)


def _shown(bucket: str, place: Path, mounts: Mounts) -> Path:
    if not may_place(str(place)):
        raise NoMountError("a process may mount nothing here")
    return mounts.show_bucket(bucket)


def _meant(options: ContractOptions, script: str, arguments: Iterable[str]) -> set[str]:
    if "vertex" not in options.contracts:
        return set()
    own = ""
    with suppress(OSError, UnicodeDecodeError):  # a module's name, or a program
        own = Path(script).read_text()
    texts = [*arguments, *map(str, options.hyperparameters.values())]
    found = {name for text in (own, *texts) for name in _BY_PATH.findall(text)}
    if str(_ROOT) in own:  # it makes paths of URLs, perhaps
        found.update(name for text in texts for name in _BY_URL.findall(text))
    return found
