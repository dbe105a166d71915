"""What one finished shard says of itself: its rows of the index, and what was left out of it.

Written beside the shards while packing, after the shard; so a part that is there vouches for its
shard, and a packing that was killed goes on behind the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import pyarrow as pa

from headrace.core.errors import DatasetError
from headrace.data.shards.faults import BadFile
from headrace.data.shards.rows.builder import RowBuilder, digest_of
from headrace.data.shards.rows.columns import MemberKind

_KEY = b"headrace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One shard, or one group of loose objects.

    Attributes:
        number: Its place in the order of the dataset.
        name: The shard's path; "" for loose objects.
        size_bytes: The shard's size; for loose objects the sum of theirs.
        num_members: How many files it holds.
        recoded: How many of them were changed while packing.
        bad: What was left out.
        key: Of the packing that wrote it; "" where no other one could have.
        digest: A hash of the rows; see Rows.digest.
        kinds: The extensions in it.
        batch: The rows.
    """

    number: int
    name: str
    size_bytes: int
    num_members: int
    recoded: int
    bad: tuple[BadFile, ...]
    digest: str
    kinds: Mapping[str, MemberKind]
    batch: pa.RecordBatch
    key: str = ""

    @classmethod
    def build(
        cls,
        rows: RowBuilder,
        *,
        number: int,
        name: str = "",
        size_bytes: int,
        recoded: int = 0,
        bad: tuple[BadFile, ...] = (),
        key: str = "",
    ) -> Self:
        """Return the part made of collected rows."""
        kinds, batch = rows.kinds(), rows.batch()
        return cls(
            number=number,
            name=name,
            size_bytes=size_bytes,
            num_members=rows.num_members,
            recoded=recoded,
            bad=bad,
            key=key,
            digest=digest_of(batch, kinds),
            kinds=kinds,
            batch=batch,
        )

    def to_bytes(self) -> bytes:
        """Return the part as an Arrow IPC stream."""
        about = {
            "number": self.number,
            "name": self.name,
            "size_bytes": self.size_bytes,
            "num_members": self.num_members,
            "recoded": self.recoded,
            "bad": [asdict(bad) for bad in self.bad],
            "key": self.key,
            "digest": self.digest,
            "kinds": dict(self.kinds),
        }
        schema = self.batch.schema.with_metadata({_KEY: json.dumps(about).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(self.batch)
        return sink.getvalue().to_pybytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, where: str) -> Self:
        """Read a part back; raises DatasetError, naming `where`, if it is none."""
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                about: dict[str, Any] = json.loads((reader.schema.metadata or {})[_KEY])
                batch = reader.read_next_batch()
            bad = tuple(BadFile(**bad) for bad in about.pop("bad"))
            part = cls(bad=bad, batch=batch, **about)
        except (pa.ArrowInvalid, OSError, KeyError, TypeError, ValueError, StopIteration) as error:
            raise DatasetError(
                f"{where} is no record of a finished shard ({error}). Delete the destination and "
                "pack again."
            ) from None
        if digest_of(part.batch, part.kinds) != part.digest:
            raise DatasetError(f"{where} is damaged. Delete it and run the same command again.")
        return part
