"""Whether a file's own format says that its end is missing.

Who is killed while he writes in place leaves a file that looks closed. What `torch.save` writes
is a zip archive, whose directory comes last; a safetensors file tells its length at its beginning.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

_ZIP = b"PK\x03\x04"
_LONGEST_HEADER = 100_000_000  # safetensors' own limit


def is_cut_short(path: Path) -> bool:
    """Tell whether a file is surely not whole; one of a format that is not known may be.

    Raises:
        OSError: It cannot be read.
    """
    if path.suffix == ".safetensors":
        return _is_cut_short_safetensors(path)
    with path.open("rb") as file:
        begins = file.read(len(_ZIP))
    return begins == _ZIP and not zipfile.is_zipfile(path)


def _is_cut_short_safetensors(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _LONGEST_HEADER):
            return True
        try:
            header = json.loads(file.read(length))
            ends = [
                int(told["data_offsets"][1])
                for name, told in header.items()
                if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return False  # another format by the same name
    return size < 8 + length + max(ends, default=0)
