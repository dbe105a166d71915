"""How large samples will be once they are packed, told from a few of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.errors import BadSampleError, CredentialsError
from headrace.data.shards.options import Recode
from headrace.data.shards.packing.cut import spread
from headrace.data.shards.packing.shard import load
from headrace.data.shards.packing.source_reader import UNREADABLE, SourceReader
from headrace.data.shards.sources.samples import SampleTable, SourceSample, samples_of
from headrace.data.shards.window import result_of

_LOOKED_AT = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What the sizes of a source turn into.

    Attributes:
        ratio: Packed bytes for each byte of the source.
        mean_bytes: Bytes of a sample whose size is not known beforehand.
    """

    ratio: float = 1.0
    mean_bytes: int = 0

    def packed_bytes(self, known_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return int64[n], what samples of these sizes (-1: unknown) will have."""
        source = np.where(known_bytes < 0, self.mean_bytes, known_bytes)
        return (source * self.ratio).astype(np.int64)


def measure_scale(table: SampleTable, recode: Recode | None) -> Scale:
    """Read and recode a few samples, the same ones every time.

    Nothing is read where nothing would be learnt: all sizes known, and no recoding.
    """
    known = table.known_bytes()
    if recode is None and bool((known >= 0).all()):
        return Scale()
    rows = spread(len(table), _LOOKED_AT)
    reader = SourceReader(table.url)
    try:
        before, after, count = _sum_sizes(reader, samples_of(table.take(rows)), recode)
    finally:
        reader.close()
    if before == 0:
        return Scale()
    return Scale(ratio=after / before, mean_bytes=before // count)


def _sum_sizes(
    reader: SourceReader, samples: Sequence[SourceSample], recode: Recode | None
) -> tuple[int, int, int]:
    before = after = count = 0
    for sample, contents in reader.read(samples):
        for file, content in zip(sample.files, contents, strict=True):
            try:
                data = result_of(content)
                kept, _ = load(file, data, recode, None)
            except CredentialsError:
                raise
            except (BadSampleError, *UNREADABLE):
                continue  # packing meets it again, and names it
            before, after = before + len(data), after + len(kept)
        count += 1
    return before, after, count
