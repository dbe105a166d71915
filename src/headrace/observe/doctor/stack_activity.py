"""Activity at a stack sample, by its frames and source: locks, reads, waits for the device.

Records hold no source, so it is read when a run is diagnosed. A file that was written after the run
began may have changed, and is ignored.
"""

from __future__ import annotations

import linecache
import re
from pathlib import Path

from headrace.observe.doctor.stack_samples import StackSample
from headrace.observe.whatif.tables import Columns, row_count


def recording_start_s(hosts: Columns, processes: Columns) -> float | None:
    """Return when the recording of a run began, in seconds since 1970; None if unknown.

    Each host has its own clock, and no record says which host a process is on; so with several
    hosts it is the earliest possible time.
    """
    if row_count(hosts) == 0 or row_count(processes) == 0:
        return None
    offset_ns, started_ns = int(hosts["unix_offset_ns"].min()), int(processes["started_ns"].min())
    return (offset_ns + started_ns) / 1e9 if offset_ns > 0 else None


def is_newer(file: str, ran_since_s: float | None) -> bool:
    """Return whether a file exists and was written after a time."""
    try:
        return ran_since_s is not None and Path(file).stat().st_mtime > ran_since_s
    except (OSError, ValueError):
        return False


def source_lines_as_run(file: str, ran_since_s: float | None) -> list[str]:
    """Return a file's lines if it is unchanged since a run began, or may be; otherwise none."""
    if is_newer(file, ran_since_s):
        return []
    linecache.checkcache(file)  # a live view diagnoses repeatedly
    return linecache.getlines(file)


LOCK = re.compile(
    r"(multiprocessing/(synchronize|managers|queues)|filelock/\w+|portalocker/\w+)\.py:"
    r"|:(\w+\.)*_?(acquire|lock|flock|lockf)\w*$"
)
"""Frames that wait for another process; waits between threads of one worker do not count."""
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
"""Frames that read from a service or another process rather than from files."""
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


def is_lock(sample: StackSample) -> bool:
    """Return whether a sample waits for a lock, by a library's frames or by its source."""
    if sample.passes(LOCK):
        return True
    # Python's own locks and the system's are native code without frames.
    return not sample.calls and bool(_LOCK_SOURCE.search(_source_line(sample)))


def is_reading(sample: StackSample) -> bool:
    """Return whether a sample reads, by a library's frames, its function's name or its source."""
    if sample.passes(_READ_LIBRARY):
        return True
    name = sample.own_frame.function
    return bool(_READ_NAME.search(name) or _READ_SOURCE.search(_source_line(sample)))


def reads_own_files(sample: StackSample) -> bool:
    """Return whether a sample reads a file that its function opens, by frames or source."""
    if not is_reading(sample) or sample.passes(_REMOTE):
        return False
    return sample.passes(_OPEN_LIBRARY) or bool(_OPEN_SOURCE.search(_function_source_until(sample)))


def runs_model(sample: StackSample) -> bool:
    """Return whether a rank runs its model, trains it, or copies to the device."""
    # The model runs through torch's own frames; the other phases are recorded.
    return sample.phase in _MODEL_PHASES or sample.passes(_TORCH)


def is_device_sync(sample: StackSample) -> bool:
    """Return whether a sample waits for the device: `.item()`, `.cpu()`, a printed tensor."""
    if sample.passes(_SYNC_FRAME):
        return True
    # Methods of tensors are native code without frames, so the user's line decides.
    source = _source_line(sample)
    if sample.calls or _SLEEP_SOURCE.search(source):
        return False
    return bool(_SYNC_SOURCE.search(source))


def is_sleep(sample: StackSample) -> bool:
    """Return whether a sample is in a call of sleep."""
    return not sample.calls and bool(_SLEEP_SOURCE.search(_source_line(sample)))


def _function_source_until(sample: StackSample) -> str:
    """Return the source of the sample's user function from its head to the line reached."""
    frame = sample.own_frame
    lines = source_lines_as_run(frame.file, sample.ran_since_s)[: frame.line]
    name = frame.function.rsplit(".", 1)[-1]
    if name not in _SEVERAL_SAMPLES:  # these may read an opened file for many samples
        for head in reversed(range(len(lines))):
            if lines[head].lstrip().startswith(f"def {name}("):
                return "".join(lines[head:])
    return "".join(lines[-1:])


def _source_line(sample: StackSample) -> str:
    """Return the sample's user line, if its file is unchanged since the run."""
    frame = sample.own_frame
    lines = source_lines_as_run(frame.file, sample.ran_since_s)
    return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""
