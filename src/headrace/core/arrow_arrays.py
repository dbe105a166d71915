"""Arrow arrays from Python and NumPy values and back, without an import of pandas.

`pyarrow.array` and `.to_numpy` import pandas where it is installed: half a second and 40 MB in
every worker and launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def strings(texts: Sequence[str]) -> pa.StringArray:
    """Return texts as an array with 32-bit offsets, 2 GiB at most."""
    ends, data = _encode_texts(texts)
    buffers = [None, pa.py_buffer(ends.astype(np.int32).tobytes()), pa.py_buffer(data)]
    return cast("pa.StringArray", pa.Array.from_buffers(pa.string(), len(texts), buffers))


def large_strings(texts: Sequence[str]) -> pa.LargeStringArray:
    """Return texts as an array with 64-bit offsets."""
    ends, data = _encode_texts(texts)
    buffers = [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]
    array = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
    return cast("pa.LargeStringArray", array)


def dictionary_strings(texts: Sequence[str | None]) -> pa.DictionaryArray[Any, Any]:
    """Return texts as a dictionary-encoded array: each text once, and its index in every row."""
    known: dict[str, int] = {}
    codes = [-1 if text is None else known.setdefault(text, len(known)) for text in texts]
    indexes = np.array(codes, dtype=np.int32)
    is_valid = indexes >= 0
    bits = (
        None if is_valid.all() else pa.py_buffer(np.packbits(is_valid, bitorder="little").tobytes())
    )
    buffers = [bits, pa.py_buffer(np.maximum(indexes, 0).tobytes())]
    numbered = pa.Array.from_buffers(pa.int32(), len(indexes), buffers)
    return pa.DictionaryArray.from_arrays(numbered, strings(list(known)))


def numbers(values: NDArray[Any], kind: pa.DataType) -> pa.Array[Any]:
    """Return numbers as an array of `kind`, which must be the type of `values`."""
    buffers = [None, pa.py_buffer(values.tobytes())]
    return cast("pa.Array[Any]", pa.Array.from_buffers(kind, len(values), buffers))


def column_values(column: pa.ChunkedArray[Any]) -> NDArray[Any]:
    """Return the values of a column of numbers without nulls; a single chunk is not copied."""
    kind = column.type.to_pandas_dtype()
    parts = []
    for chunk in column.chunks:
        data = chunk.buffers()[1]
        if len(chunk) and data is not None:
            values: NDArray[Any] = np.frombuffer(memoryview(data), kind)
            parts.append(values[chunk.offset : chunk.offset + len(chunk)])
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _encode_texts(texts: Sequence[str]) -> tuple[NDArray[np.int64], bytes]:
    encoded = [text.encode() for text in texts]
    ends = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    return ends, b"".join(encoded)
