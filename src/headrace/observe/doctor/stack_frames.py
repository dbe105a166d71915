"""Frames of a stack, and which of them is named: the user's own line, or a library's function.

The user's innermost line counts, but of code that makes a batch only lines that the loader calls:
the line of the training loop outside of it makes nothing. Where a loader calls libraries alone, the
transform is named, or else the innermost function of the library that the dataset, collate function
or transform is of, not one of NumPy or Pillow that it calls.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StackFrame:
    """A frame of a stack; its line is 0 if the interpreter was between lines."""

    file: str
    line: int
    function: str
    module_file: str  # a library's file below its import folder: PIL/Image.py; "": the user's code

    @property
    def is_user(self) -> bool:
        """Whether the code is the user's: not installed, not Python's, not Headrace's."""
        return not self.module_file

    @property
    def function_id(self) -> tuple[str, str]:
        """The function's file and its name."""
        return self.file, self.function

    @property
    def library(self) -> str:
        """The name under which the library is imported: torchvision; empty for the user's code."""
        return self.module_file.partition("/")[0].removesuffix(".py")

    @property
    def scope(self) -> str:
        """What its time counts to: the function, or of a library's transform the class."""
        return transform_class(self) or self.function

    @property
    def library_name(self) -> str:
        """The library and the transform or function: torchvision RandomResizedCrop."""
        return f"{self.library} {self.scope}"

    def __str__(self) -> str:
        """Return the end of the file's path and the function: PIL/Image.py:resize."""
        return f"{'/'.join(Path(self.file).parts[-2:])}:{self.function}"


_TRANSFORM_FILE = re.compile(
    r"(^|/)_?(transforms?|albumentations|kornia|augment\w*|audiomentations|imgaug|auto_augment"
    r"|random_erasing|mixup|torch_audiomentations)(/|\.py$)"
)
_METHOD = re.compile(r"^(?P<kind>_*[A-Z]\w*)\.\w+$")
_CONTAINER = re.compile(
    r"^_*(\w*Compose|\w*Sequential|Basic\w*|\w*Container|Module|(Map|Dual|ImageOnly|Randomizable)?"
    r"Transform|OneOf|SomeOf|Lambda|Random(Apply|Choice|Order)|NoOp|\w*MixIn|\w*Augmentation\w*Base\w*)$"
)
"""Classes of which transforms are made, or that call them."""


@lru_cache(maxsize=65_536)
def transform_class(frame: StackFrame) -> str:
    """Return the class of a library's transform whose method a frame is in; empty if it is none."""
    found = _METHOD.match(frame.function)
    if found is None or _TRANSFORM_FILE.search(frame.module_file) is None:
        return ""
    return "" if _CONTAINER.match(found["kind"]) else found["kind"]


_ENTRY = re.compile(r"^(torch/utils/data/|torchdata/|headrace/data/loader/|headrace/offload/)")
"""Code of loaders: what it calls makes batches."""
_MAKES = re.compile(
    r"^torch/utils/data/_utils/(fetch|worker)\.py$|^torchdata/nodes/"
    r"|^headrace/data/loader/(batch_builder\.py$|workers/)"
)
"""Code of loaders within which batches are made: without it a rank only takes what workers made."""
_PROCESS_MAIN = re.compile(r"^multiprocess(ing)?/process\.py:BaseProcess\.(_bootstrap|run)$")
"""What a child process runs first; its parent also starts and joins it in that file."""
_CALLS_ON = re.compile(
    r"^(headrace/(?!data/(shards|transforms)/)|torchdata|multiprocess|<)"
    r"|^torch/utils/data/(?!dataset\.py|_utils/collate\.py)"
)
"""Libraries' code that makes nothing itself."""
_BASIC = re.compile(
    r"^(torch|numpy|PIL|cv2|scipy|pandas|pyarrow|dill|fsspec|einops|imageio|skimage|soundfile|numba"
    r"|simplejpeg|turbojpeg|tokenizers|safetensors|h5py|zarr|lmdb|urllib3|requests|botocore|boto3"
    r"|s3fs|gcsfs|aiohttp|httpx|obstore|yaml|tqdm|packaging|wrapt|typing_extensions)$"
)
"""Libraries that others call for their work: the caller says more."""
_MODULE_CALL = re.compile(r"^torch/nn/modules/(module|container)\.py$")


def process_begin(frames: Sequence[StackFrame]) -> int:
    """Return the index of the first frame that a worker process has not from its parent."""
    mains = [at for at, frame in enumerate(frames) if _begins_process(frame)]
    return mains[-1] + 1 if mains else 0


def _begins_process(frame: StackFrame) -> bool:
    return _PROCESS_MAIN.match(f"{frame.module_file}:{frame.function}") is not None


def making_begin(frames: Sequence[StackFrame]) -> int | None:
    """Return the index of the first frame of the loader that makes the batch; None without one."""
    begin = process_begin(frames)
    return next(
        (at for at in range(begin, len(frames)) if _ENTRY.match(frames[at].module_file)), None
    )


def own_index(frames: Sequence[StackFrame]) -> int:
    """Return the index of the frame that is named: the user's, or else a library's."""
    process, entry = process_begin(frames), making_begin(frames)
    inner = process if entry is None else entry
    users = [at for at, frame in enumerate(frames) if frame.is_user]
    if users and users[-1] >= inner:
        return users[-1]
    makes = any(_MAKES.match(frame.module_file) for frame in frames[inner:])
    named = _library_index(frames, inner) if makes else None
    if named is None and users and users[-1] >= process:  # the loader waits, for the training loop
        return users[-1]
    if named is None:
        named = _library_index(frames, inner)
    return len(frames) - 1 if named is None else named


def named_call(frames: Sequence[StackFrame]) -> str:
    """Return the call that is named of those below the user's line, outermost first; "" if none.

    A transform says more than the container that calls it, and that more than torch's modules.
    """
    transforms = [frame for frame in frames if transform_class(frame)]
    others = [frame for frame in frames if not _MODULE_CALL.match(frame.module_file)]
    return str(next(iter([*transforms[-1:], *others, *frames]), ""))


def _library_index(frames: Sequence[StackFrame], begin: int) -> int | None:
    """Return the index of a library's frame that is named; None where all only call on."""
    working = [at for at in range(begin, len(frames)) if _works(frames[at])]
    special = [at for at in working if is_library_work(frames[at])]
    transforms = [at for at in working if transform_class(frames[at])]
    if not transforms and special and _is_container(frames[special[-1]]):
        # What it calls is a function of NumPy's or the like, which was given to it as a transform.
        called = [at for at in working if at > special[-1]]
        own = [at for at in called if not _MODULE_CALL.match(frames[at].module_file)]
        return own[0] if own else special[-1]
    for found in (transforms, special, working):
        if found:
            return found[-1]
    return None


def is_library_work(frame: StackFrame) -> bool:
    """Return whether a frame is of a library that says what is done: a trainer's, not torch's."""
    return _works(frame) and not _BASIC.match(frame.library)


def _is_container(frame: StackFrame) -> bool:
    """Return whether a frame is in a class that only calls the transforms which it holds."""
    found = _METHOD.match(frame.function)
    return found is not None and _CONTAINER.match(found["kind"]) is not None


def _works(frame: StackFrame) -> bool:
    is_python = frame.library in sys.stdlib_module_names
    return not (frame.is_user or is_python or _CALLS_ON.match(frame.module_file))
