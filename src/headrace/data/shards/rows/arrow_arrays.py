"""Arrow arrays made without `pyarrow.array`, which imports pandas where it is installed.

That import takes half a second and 40 MB in every worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def strings(texts: Sequence[str]) -> pa.StringArray:
    """Return texts as an array with 32-bit offsets, 2 GiB at most."""
    ends, data = _encode(texts)
    buffers = [None, pa.py_buffer(ends.astype(np.int32).tobytes()), pa.py_buffer(data)]
    return cast("pa.StringArray", pa.Array.from_buffers(pa.string(), len(texts), buffers))


def large_strings(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return texts as an array with 64-bit offsets."""
    ends, data = _encode(texts)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
    return cast("pa.LargeStringArray", array)


def numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return whole numbers as an array of `kind`, which must be the type of `values`."""
    buffers = [None, pa.py_buffer(values.tobytes())]
    return cast("pa.Array[Any]", pa.Array.from_buffers(kind, len(values), buffers))


def _encode(texts: Sequence[str]) -> tuple[NDArray[np.int64], bytes]:
    encoded = [text.encode() for text in texts]
    ends = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    return ends, b"".join(encoded)
