"""Which frame of a stack is named, in code that makes batches."""

from __future__ import annotations

import pytest

from headrace.core.source_location import CodeFolders
from headrace.observe.doctor.stack_frames import StackFrame, making_begin, named_call, own_index

LIBS = "/venv/site-packages"
FOLDERS = CodeFolders(libraries=("/python3.11", LIBS), packages=("/opt/headrace",))
LOOP = ["/home/ann/train.py:16:main", f"{LIBS}/torch/utils/data/dataloader.py:7:_Iter.__next__"]
FETCH = f"{LIBS}/torch/utils/data/_utils/fetch.py:54:_MapDatasetFetcher.fetch"
FORKED = [
    *LOOP,
    "/python3.11/multiprocessing/context.py:1:Process.start",
    "/python3.11/multiprocessing/process.py:314:BaseProcess._bootstrap",
    f"{LIBS}/torch/utils/data/_utils/worker.py:349:_worker_loop",
    FETCH,
]
FOLDER = f"{LIBS}/torchvision/datasets/folder.py:247:DatasetFolder.__getitem__"
COMPOSE = f"{LIBS}/torchvision/transforms/transforms.py:95:Compose.__call__"
MODULE = f"{LIBS}/torch/nn/modules/module.py:1700:Module._call_impl"
CROP = f"{LIBS}/torchvision/transforms/transforms.py:987:RandomResizedCrop.forward"
FUNCTIONAL = f"{LIBS}/torchvision/transforms/functional.py:600:resized_crop"
RESIZE = f"{LIBS}/PIL/Image.py:2300:Image.resize"
LOADED = [
    f"{LIBS}/torchvision/datasets/folder.py:262:default_loader",
    f"{LIBS}/torchvision/datasets/folder.py:245:pil_loader",
    f"{LIBS}/PIL/ImageFile.py:250:ImageFile.load",
]
LAMBDA = f"{LIBS}/torchvision/transforms/transforms.py:480:Lambda.__call__"
POWER = [
    f"{LIBS}/numpy/linalg/_linalg.py:600:matrix_power",
    f"{LIBS}/numpy/linalg/_linalg.py:150:_assert_stacked_square",
]
SUBSET = f"{LIBS}/torch/utils/data/dataset.py:400:Subset.__getitem__"
V2 = f"{LIBS}/torchvision/transforms/v2"
V2_CROP = [
    f"{V2}/_container.py:50:Compose.forward",
    MODULE,
    f"{V2}/_transform.py:68:Transform.forward",
    f"{V2}/_geometry.py:300:RandomResizedCrop.transform",
    f"{V2}/_transform.py:40:Transform._call_kernel",
    f"{V2}/functional/_geometry.py:1500:resized_crop_image",
]
ALB = f"{LIBS}/albumentations"
CLAHE = [
    f"{ALB}/core/composition.py:500:Compose.__call__",
    f"{ALB}/core/transforms_interface.py:200:BasicTransform.__call__",
    f"{ALB}/augmentations/pixel/transforms.py:300:CLAHE.apply",
    f"{ALB}/augmentations/pixel/functional.py:20:clahe",
]
HF = [
    f"{LIBS}/datasets/arrow_dataset.py:2700:Dataset.__getitems__",
    f"{LIBS}/datasets/formatting/formatting.py:500:CustomFormatter.format_batch",
]
MINE = "/home/ann/data.py:31:Faces.__getitem__"
PROCESSOR = f"{LIBS}/transformers/image_transforms.py:300:resize"
COLLATE = f"{LIBS}/torch/utils/data/_utils/collate.py:270:default_collate"
TAKES = f"{LIBS}/torch/multiprocessing/reductions.py:560:rebuild_storage_fd"
RANK_WAIT = "/python3.11/multiprocessing/queues.py:110:Queue.get"


def parsed(lines: list[str]) -> list[StackFrame]:
    found = []
    for line in lines:
        file, number, function = line.rsplit(":", 2)
        found.append(StackFrame(file, int(number), function, FOLDERS.module_file(file)))
    return found


NAMED = {
    "a stock transform": ([FOLDER, COMPOSE, MODULE, CROP, FUNCTIONAL, RESIZE], "RandomResizedCrop"),
    "the transform's own parameters": (
        [FOLDER, COMPOSE, f"{LIBS}/torchvision/transforms/transforms.py:950:RandomResizedCrop.get"],
        "RandomResizedCrop",
    ),
    "a function of NumPy's as a transform": ([FOLDER, COMPOSE, *POWER], "matrix_power"),
    "within torchvision's Lambda": ([FOLDER, COMPOSE, LAMBDA, *POWER], "matrix_power"),
    "in a container of the second generation": (
        [FOLDER, MODULE, f"{V2}/_container.py:50:Compose.forward", MODULE, *POWER],
        "matrix_power",
    ),
    "native code without frames as a transform": ([FOLDER, COMPOSE], "Compose.__call__"),
    "a picture's own method": (
        [FOLDER, COMPOSE, LAMBDA, RESIZE],
        "Image.resize",
    ),
    "what decodes": ([FOLDER, *LOADED], "pil_loader"),
    "within a subset": ([SUBSET, SUBSET, FOLDER, COMPOSE, CROP, RESIZE], "RandomResizedCrop"),
    "a transform of the second generation": ([FOLDER, *V2_CROP], "RandomResizedCrop"),
    "albumentations": ([FOLDER, *CLAHE], "CLAHE"),
    "a trainer's dataset": (
        [f"{LIBS}/yolish/data.py:46:Boxes.__getitem__", f"{LIBS}/yolish/data.py:50:Boxes.mosaic"],
        "Boxes.mosaic",
    ),
    "a library's processor": ([*HF, PROCESSOR, RESIZE], "resize"),
    "a library's collate function": (
        [f"{LIBS}/effdet/loader.py:70:DetectionFastCollate.__call__"],
        "DetectionFastCollate.__call__",
    ),
    "torch's own datasets": (
        [f"{LIBS}/torch/utils/data/dataset.py:200:TensorDataset.__getitem__"],
        "TensorDataset.__getitem__",
    ),
    "torch's own collating": ([COLLATE], "default_collate"),
    "a transform of the user's in a library's dataset": (
        [FOLDER, COMPOSE, "/home/ann/data.py:9:Blur.__call__", RESIZE],
        "Blur.__call__",
    ),
    "set_transform": ([*HF, "/home/ann/train.py:9:crops", CROP, RESIZE], "crops"),
    "map": (
        [f"{LIBS}/datasets/iterable_dataset.py:900:MappedExamplesIterable.__iter__", MINE],
        "Faces.__getitem__",
    ),
    "a dataset of the user's": ([MINE, COMPOSE, CROP, RESIZE], "Faces.__getitem__"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("outer", [[*LOOP, FETCH], FORKED], ids=["by the rank", "by a worker"])
def test_what_makes_batches_is_named_and_never_the_training_loop(outer: list[str], name: str):
    inner, expected = NAMED[name]
    frames = parsed([*outer, *inner])
    assert frames[own_index(frames)].scope == expected
    begin = making_begin(frames)
    assert begin is not None
    made = frames[begin:]
    assert made[own_index(made)].scope == expected
    assert all(frame.function != "main" for frame in made)


@pytest.mark.parametrize("inner", [[RANK_WAIT], [RANK_WAIT, TAKES]])
@pytest.mark.parametrize("outer", [[], FORKED[2:4]], ids=["", "as a process of multiprocessing"])
def test_the_line_that_waits_for_a_worker_is_the_loops(outer: list[str], inner: list[str]):
    frames = parsed([*outer, *LOOP, *inner])
    assert frames[own_index(frames)].function == "main"


JOINED = [
    "/python3.11/multiprocessing/process.py:149:BaseProcess.join",
    "/python3.11/multiprocessing/popen_fork.py:40:Popen.wait",
    "/python3.11/multiprocessing/connection.py:948:wait",
    "/python3.11/selectors.py:415:_PollLikeSelector.select",
]
STARTED = [
    "/python3.11/multiprocessing/process.py:121:BaseProcess.start",
    "/python3.11/multiprocessing/popen_spawn_posix.py:62:Popen._launch",
]
ENDS = f"{LIBS}/torch/utils/data/dataloader.py:1600:_Iter._shutdown_workers"


@pytest.mark.parametrize("inner", [JOINED, STARTED, [ENDS, *JOINED]])
@pytest.mark.parametrize("outer", [[], FORKED[2:4]], ids=["", "as a process of multiprocessing"])
def test_the_line_that_starts_or_joins_a_process_is_the_scripts(outer: list[str], inner: list[str]):
    frames = parsed([*outer, LOOP[0], *inner])
    assert frames[own_index(frames)].function == "main"


def test_a_fetch_that_is_seen_in_no_library_is_the_loaders_in_a_worker():
    frames = parsed(FORKED)
    assert frames[own_index(frames)].function != "main"


def test_a_librarys_code_is_named_with_the_library():
    frames = parsed([*FORKED, FOLDER, COMPOSE, CROP, RESIZE])
    assert frames[own_index(frames)].library_name == "torchvision RandomResizedCrop"


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ([], ""),
        ([COMPOSE, MODULE, CROP, FUNCTIONAL, RESIZE], "transforms/transforms.py:RandomResizedCrop"),
        ([MODULE, *V2_CROP], "v2/_geometry.py:RandomResizedCrop"),
        (CLAHE, "pixel/transforms.py:CLAHE"),
        ([MODULE, f"{LIBS}/mine/blocks.py:5:Block.forward"], "mine/blocks.py:Block.forward"),
        (LOADED, "datasets/folder.py:default_loader"),
        ([COMPOSE, *POWER], "transforms/transforms.py:Compose"),
        ([MODULE], "modules/module.py:Module"),
    ],
)
def test_of_the_calls_below_the_users_line_the_transform_is_told(calls: list[str], name: str):
    told = named_call(parsed(calls))
    assert told.startswith(name)
    assert bool(told) == bool(name)
