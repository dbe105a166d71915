"""What the processes that are compared do: Python code by library, for each place in our own code.

The code of an arm is in two parts, both timed: what a process does once (`ready`), and the work.
`setup`, which all arms of a place share, is not timed. It gets its arguments as `arguments`, and
numbers that it puts into `extra` are compared, too.
"""

from __future__ import annotations

from dataclasses import dataclass

OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One library at a place of our own code.

    Attributes:
        ready: The code that makes a process ready, such as imports.
        work: The code of the work; "": all of it is a process's start.
    """

    ready: str
    work: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of our own code, and what could stand there.

    Attributes:
        name: What is done there.
        setup: Code that all arms run first.
        arms: By name; `OURS` is the one that the others are compared with.
    """

    name: str
    setup: str
    arms: dict[str, Arm]


CROPS = Place(
    name="a worker's crops, flips and colours",
    setup="""
import random
import numpy as np
from headrace.data.transforms.decode import decode_image
images = [decode_image(Path(name).read_bytes()) for name in arguments]
""",
    arms={
        OURS: Arm(
            ready="""
from headrace.data.transforms import ColorJitter, RandomHorizontalFlip, RandomResizedCrop
steps = (RandomResizedCrop(224), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4))
""",
            work="""
for seed in range(10 * len(images)):
    random.seed(seed)
    image = images[seed % len(images)]
    for step in steps:
        image = step(image)
    assert image.shape == (224, 224, 3)
""",
        ),
        "torchvision.transforms.v2": Arm(
            # PyPI's build looks for CUDA's libraries when it registers its operators, which no
            # crop uses; without them only that module cannot be imported.
            ready="""
import types
sys.modules["torchvision._meta_registrations"] = types.ModuleType("_meta_registrations")
import torch
from torchvision.transforms import v2
torch.set_num_threads(1)
steps = v2.Compose([
    v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
    v2.ColorJitter(0.4, 0.4, 0.4),
])
""",
            work="""
for seed in range(10 * len(images)):
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    image = torch.from_numpy(images[seed % len(images)]).permute(2, 0, 1)
    assert steps(image).shape == (3, 224, 224)
""",
        ),
        "albumentations": Arm(
            ready="""
import os
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask PyPI for a newer release
import albumentations
import cv2
cv2.setNumThreads(1)
steps = albumentations.Compose([
    albumentations.RandomResizedCrop((224, 224)), albumentations.HorizontalFlip(),
    albumentations.ColorJitter(
        brightness=(0.6, 1.4), contrast=(0.6, 1.4), saturation=(0.6, 1.4), hue=(0, 0), p=1
    ),
])
""",
            work="""
for seed in range(10 * len(images)):
    steps.set_random_seed(seed)  # a batch is the same whoever makes it
    assert steps(image=images[seed % len(images)])["image"].shape == (224, 224, 3)
""",
        ),
    },
)

LOCKS = Place(
    name="a lock on a file, taken and released",
    setup="import os\npath = arguments[0]",
    arms={
        OURS: Arm(
            ready="from headrace.core.file_lock import open_lock_file, try_lock",
            work="""
for _ in range(2000):
    descriptor = open_lock_file(path)
    assert try_lock(descriptor)
    os.close(descriptor)
""",
        ),
        "filelock": Arm(
            ready="""
from filelock import FileLock
lock = FileLock(path, timeout=0, fallback_to_soft=False)
""",
            work="""
for _ in range(2000):
    with lock:
        pass
""",
        ),
    },
)

TAR_WRITE = Place(
    name="tar headers, written",
    setup="names = [f'n0144/n0144_{number:05d}.jpg' for number in range(5000)]",
    arms={
        OURS: Arm(
            ready="from headrace.data.shards.tar import write_header",
            work="for name in names: write_header(name, 100_000)",
        ),
        "tarfile.TarInfo": Arm(
            ready="from headrace.data.shards.tar import write_header\nimport tarfile",
            work="""
for name in names:
    member = tarfile.TarInfo(name)
    member.size = 100_000
    member.tobuf(tarfile.PAX_FORMAT)
""",
        ),
    },
)

TAR_READ = Place(
    name="tar headers, read",
    setup="""
from headrace.data.shards.tar import read_header, write_header
blocks = [write_header(f'n0144/n0144_{number:05d}.jpg', 100_000) for number in range(5000)]
""",
    arms={
        OURS: Arm(ready="", work="for block in blocks: read_header(block)"),
        "tarfile.TarInfo": Arm(
            ready="import tarfile",
            work="for block in blocks: tarfile.TarInfo.frombuf(block, 'utf-8', 'surrogateescape')",
        ),
    },
)

STORE = Place(
    name="a live store of records: 131,072 rows, a drain of 256 rows at a time",
    setup="""
from headrace.records.schema import BATCHES
path = Path(arguments[0])
kinds = {"int": 10**12, "float": 0.25, "text": "line"}
rows = [
    tuple(kinds[field.kind] + row if field.kind != "text" else f"line {row % 50}"
          for field in BATCHES.fields)
    for row in range(256)
]
""",
    arms={
        OURS: Arm(
            ready="""
from headrace.records.schema import RowLimits
from headrace.records.store import RecordStore
store = RecordStore(path, RowLimits())
""",
            work="""
for _ in range(512):
    with store.transaction():
        store.add(BATCHES, rows)
store.close()
extra["MB on disk"] = path.stat().st_size / 1e6
""",
        ),
        "Arrow IPC stream": Arm(
            ready="""
import pyarrow as pa
from headrace.records.parquet_tables import arrow_schema, record_batch
schema = arrow_schema(BATCHES.name)
out = path.open("wb")
writer = pa.ipc.new_stream(
    out, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
)
""",
            work="""
for _ in range(512):
    writer.write_batch(record_batch(schema, rows))
    out.flush()
writer.close()
extra["MB on disk"] = path.stat().st_size / 1e6
""",
        ),
        "Parquet row groups": Arm(
            ready="""
import pyarrow as pa
import pyarrow.parquet as pq
from headrace.records.parquet_tables import arrow_schema, record_batch
schema = arrow_schema(BATCHES.name)
out = path.open("wb")
writer = pq.ParquetWriter(out, schema, compression="zstd")
""",
            work="""
for _ in range(512):
    writer.write_batch(record_batch(schema, rows))
    out.flush()
writer.close()
extra["MB on disk"] = path.stat().st_size / 1e6
""",
        ),
    },
)

_OPEN_INDEX = "from headrace.data.shards.shard_index import open_index\n"
_PATCH = "from headrace.data.shards import index_batches, index_rows\n"
_MAP = """
import mmap
def mapped(cls, path, manifest, where):
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    return cls(view, manifest, where)
index_batches.InMemoryBatches.map = classmethod(mapped)
"""
INDEX = Place(
    name="an index of 328,000 samples, opened and 20,000 samples looked up",
    setup="import random\nimport numpy as np\nfolder = arguments[0]",
    arms={
        name: Arm(
            ready=f"{ready}index = open_index(folder)",
            work="""
for sample in random.Random(0).sample(range(len(index)), 20_000):
    index.locate(sample)
""",
        )
        for name, ready in {
            OURS: _OPEN_INDEX,
            "mmap.mmap, before numpy.memmap": f"{_OPEN_INDEX}{_PATCH}{_MAP}",
            "numpy arrays as columns": f"""{_OPEN_INDEX}{_PATCH}
kinds = {{"H": np.uint16, "i": np.int32, "I": np.uint32, "q": np.int64}}
index_rows._cast = lambda body, span, code, count: (
    np.frombuffer(body, kinds[code], count, span[0])
)
""",
            "pyarrow.ipc": f"""{_OPEN_INDEX}{_PATCH}
import itertools
import pyarrow as pa
from headrace.data.shards.index_writer import schema_of
schema = None
def parse(message, kinds):
    global schema
    schema = schema or schema_of(kinds)
    batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
    _, ends, text = batch.column(0).buffers()
    codes = [column.code for kind in kinds.values() for column in index_rows.COLUMNS[kind]]
    values = iter([
        memoryview(column.buffers()[1]).cast("B")[
            : batch.num_rows * index_rows._WIDTH_BYTES[code]
        ].cast(code)
        for column, code in zip(batch.columns[1:], codes)
    ])
    return index_rows.IndexRows(
        count=batch.num_rows, key_ends=memoryview(ends).cast("B").cast("i"),
        text=memoryview(text),
        columns=tuple(
            tuple(itertools.islice(values, len(index_rows.COLUMNS[kind])))
            for kind in kinds.values()
        ),
    )
index_rows.IndexRows.parse = staticmethod(parse)
""",
        }.items()
    },
)

TOP = Place(
    name="headrace top: the first frame, then 50",
    setup="""
from rich.console import Console
from headrace.report.top.screen import render_frame
from headrace.report.top.run_watcher import RunWatcher
state = RunWatcher(Path(arguments[0])).look(wait=True)
""",
    arms={
        OURS: Arm(
            ready="""
from rich.live import Live
console = Console(file=open("/dev/null", "w"), force_terminal=True, width=100, height=30)
live = Live(console=console, screen=True, auto_refresh=False)
live.start()
live.update(render_frame(state, console, height=30), refresh=True)
""",
            work="""
for frame in range(50):
    live.update(render_frame(state, console, height=30, paused=frame % 2 == 1), refresh=True)
""",
        ),
        "Textual": Arm(
            ready="""
import asyncio
from textual.app import App
from textual.widgets import Static
console = Console(file=open("/dev/null", "w"), force_terminal=True, width=100, height=30)
class View(App):
    def compose(self):
        yield Static(render_frame(state, console, height=30))
loop = asyncio.new_event_loop()
view = View()
shown = view.run_test(size=(100, 30))
pilot = loop.run_until_complete(shown.__aenter__())
loop.run_until_complete(pilot.pause())
""",
            work="""
async def update():
    for frame in range(50):
        view.query_one(Static).update(
            render_frame(state, console, height=30, paused=frame % 2 == 1)
        )
        await pilot.pause()
loop.run_until_complete(update())
""",
        ),
    },
)

_JOB = """
import dataclasses
fields = [
    (each.name, bool, dataclasses.field(default=False)) if each.kind.is_switch
    else (each.name, list[str], dataclasses.field(default_factory=list)) if each.kind.repeats
    else (each.name, str | None, dataclasses.field(default=None))
    for each in job_options().values()
]
Job = dataclasses.make_dataclass("Job", fields, kw_only=True)
"""
OPTIONS = Place(
    name="the options of headrace run, parsed",
    setup="""
from headrace.jobs.spec import JobSpec, job_options
import headrace.jobs.run
""",
    arms={
        OURS: Arm(
            ready="""
import typer
from headrace.cli import run
run.run_job = lambda flags: 0
app = typer.Typer()
run.register(app)
try:
    app(["--name", "a", "--channel", "x=s3://b/c", "--dry-run", "train.py"])
except SystemExit as ended:
    assert not ended.code, ended.code
""",
            work="",
        ),
        "tyro": Arm(
            ready=f"""
import tyro
{_JOB}
job, rest = tyro.cli(
    Job, args=["--name", "a", "--channel", "x=s3://b/c", "--dry-run", "train.py"],
    return_unknown_args=True,
)
assert job.name == "a" and job.dry_run
""",
            work="",
        ),
        "jsonargparse": Arm(
            ready=f"""
import jsonargparse
{_JOB}
parser = jsonargparse.ArgumentParser()
parser.add_class_arguments(Job)
parser.add_argument("script")
job = parser.parse_args(
    ["--name", "a", "--channel", '["x=s3://b/c"]', "--dry_run", "true", "train.py"]
)
assert job.name == "a" and job.dry_run
""",
            work="",
        ),
    },
)
