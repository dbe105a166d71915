"""What a process does where it was seen: takes a lock, reads, trains, waits for the device."""

from __future__ import annotations

import re

from headrace.observe.doctor.sources import lines_as_run
from headrace.observe.doctor.stacks import Sighting

LOCK = re.compile(
    r"(multiprocessing/(synchronize|managers|queues)|filelock/\w+|portalocker/\w+)\.py:"
    r"|:(\w+\.)*_?(acquire|lock|flock|lockf)\w*$"
)
"""Frames of code that waits for another process; threads of one worker are its own affair."""
_LOCK_SOURCE = re.compile(r"\b(flock|lockf|acquire)\(")
_READ_LIBRARY = re.compile(
    r"/(socket|ssl|http/client|urllib/\w+|pathlib|_pathlib\w*|zipfile\w*|tarfile|gzip|shutil|sqlite3/"
    r"\w+)\.py:|-packages/(urllib3|requests|botocore|boto3|s3fs|gcsfs|fsspec|aiohttp|httpx|obstore|"
    r"h5py|lmdb|zarr|smart_open|google/cloud/storage|PIL/ImageFile)"
)
_READ_NAME = re.compile(
    r"(^|[._])(read|load|open|fetch|download|get_object|request|recv)", re.IGNORECASE
)
_READ_SOURCE = re.compile(
    r"\bopen\(|\.read(_\w+)?\(|\.load\(|imread\(|\.recv\(|fromfile\(|memmap\("
)
_REMOTE = re.compile(
    r"/(socket|ssl|subprocess|http/client|urllib/\w+|multiprocessing/(connection|queues|managers))\.py:"
    r"|-packages/(urllib3|requests|botocore|boto3|s3fs|gcsfs|fsspec|aiohttp|httpx|obstore|"
    r"smart_open|google/cloud/storage)/"
)
"""Frames of code that reads from a service or another process rather than from files."""
_OPEN_LIBRARY = re.compile(
    r"/_?pathlib\w*\.py:|-packages/(PIL/Image\.py:open|numpy/lib/\S*npyio\S*:(\w+\.)*load"
    r"|torchvision/(datasets/folder|io/\w+)\.py:|torchaudio/|imageio/|skimage/io/|soundfile\.py:)"
)
_OPEN_SOURCE = re.compile(
    r"\bopen\(|\bimread\(|\.read_(bytes|text)\(|\b(read_image|read_file|fromfile|load_file)\("
    r"|\b(np|numpy|torch|torchaudio)\.load\(|\b(sf|soundfile)\.read\("
)
_SEVERAL_SAMPLES = ("__iter__", "__next__")
_TORCH = re.compile(r"-packages/torch/(?!utils/data)|/torch/nn/|/torch/autograd/")
_MODEL_PHASES = ("backward", "optimizer", "sync", "copy")
_SLEEP_SOURCE = re.compile(r"\bsleep\(")
_SYNC_FRAME = re.compile(
    r"torch/cuda/__init__\.py:synchronize|torch/_tensor(_str)?\.py:(\w+\.)*(__repr__|__format__|_str)"
)
_SYNC_SOURCE = re.compile(r"\.(item|cpu|tolist|numpy|synchronize)\(")


def is_lock(sighting: Sighting) -> bool:
    """Whether the code there takes a lock: by a library's frames, or by its source if at hand."""
    if sighting.passes(LOCK):
        return True
    # Python's own locks and the system's are native and leave no frame.
    return not sighting.calls and bool(_LOCK_SOURCE.search(_source(sighting)))


def is_reading(sighting: Sighting) -> bool:
    """Whether the code there reads: by its library frames, its name, or its source if at hand."""
    if sighting.passes(_READ_LIBRARY):
        return True
    name = sighting.own_frame.function
    return bool(_READ_NAME.search(name) or _READ_SOURCE.search(_source(sighting)))


def reads_own_files(sighting: Sighting) -> bool:
    """Whether the code there reads a file that it opens for that: by its frames, or its source."""
    if not is_reading(sighting) or sighting.passes(_REMOTE):
        return False
    return sighting.passes(_OPEN_LIBRARY) or bool(_OPEN_SOURCE.search(_source_until(sighting)))


def runs_model(sighting: Sighting) -> bool:
    """Whether a rank stands in its model there, in training it, or in copying to the device."""
    # The model runs through torch's own frames; only the other phases are marked apart from it.
    return sighting.phase in _MODEL_PHASES or sighting.passes(_TORCH)


def is_device_sync(sighting: Sighting) -> bool:
    """Whether the code there waits for the device: `.item()`, `.cpu()`, a printed tensor."""
    if sighting.passes(_SYNC_FRAME):
        return True
    # Methods of tensors are native and leave no frame, so the user's line has to tell.
    source = _source(sighting)
    if sighting.calls or _SLEEP_SOURCE.search(source):
        return False
    return bool(_SYNC_SOURCE.search(source))


def is_sleep(sighting: Sighting) -> bool:
    """Whether the code there sleeps."""
    return not sighting.calls and bool(_SLEEP_SOURCE.search(_source(sighting)))


def _source_until(sighting: Sighting) -> str:
    """Return the source of the user's function there from its head to the line where it is."""
    frame = sighting.own_frame
    lines = lines_as_run(frame.file, sighting.ran_since_s)[: frame.line]
    name = frame.function.rsplit(".", 1)[-1]
    if name not in _SEVERAL_SAMPLES:  # what these open they may read for many samples
        for head in reversed(range(len(lines))):
            if lines[head].lstrip().startswith(f"def {name}("):
                return "".join(lines[head:])
    return "".join(lines[-1:])


def _source(sighting: Sighting) -> str:
    """Return the user's line there, where its file is still as it ran; records hold no source."""
    frame = sighting.own_frame
    lines = lines_as_run(frame.file, sighting.ran_since_s)
    return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""
