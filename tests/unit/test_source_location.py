"""What counts as a library's code, and which lines led to a call."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from headrace.core.source_location import CodeFolders, call_places, find_code_folders

STDLIB = sysconfig.get_path("stdlib")
INSTALLED = sysconfig.get_path("purelib")


def folders(*import_path: Path | str, main: Path | str = "", torch_file: str = "") -> CodeFolders:
    return find_code_folders(tuple(map(str, import_path)), str(main), torch_file)


USERS = [
    "pytorch/torch/utils/data/loader.py",
    "torch/utils/data/dataset.py",
    "seg-pytorch/utils/dataloader.py",
    "site-packages-demo/train.py",
    "lib/python3/project/train.py",
    "lib/python3.11/train.py",
    ".local/lib/project/train.py",
    "headrace/data/loader/train.py",
    "site-packages/train.py",  # a folder that holds a script
    "dist-packages/sub/model.py",
]


@pytest.mark.parametrize("file", USERS)
def test_a_checkout_is_the_users_whatever_its_folders_are_called(tmp_path: Path, file: str):
    path = tmp_path / file
    known = folders(path.parent, STDLIB, INSTALLED, main=path)
    assert known.module_file(str(path)) == ""


def test_libraries_are_named_as_they_are_imported(tmp_path: Path):
    known = folders(tmp_path, main=tmp_path / "train.py", torch_file=torch.__file__)
    assert known.module_file(json.__file__) == "json/__init__.py"
    assert known.module_file(torch.__file__) == "torch/__init__.py"
    assert known.module_file(f"{INSTALLED}/PIL/Image.py") == "PIL/Image.py"
    assert known.module_file("<frozen importlib._bootstrap>") != ""
    assert known.module_file(sys.modules[CodeFolders.__module__].__file__ or "").startswith(
        "headrace/core/"
    )


def test_an_environment_in_a_project_is_no_part_of_it(tmp_path: Path):
    installed = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    known = folders(tmp_path, installed, main=tmp_path / "train.py")
    assert known.module_file(f"{installed}/yolish/data.py") == "yolish/data.py"
    assert known.module_file(f"{tmp_path}/data/faces.py") == ""
    assert known.module_file(f"{tmp_path}/.venv/notes.py") == ""


def test_all_of_a_package_whose_module_is_run_is_the_users(tmp_path: Path):
    """By `python -m mine.tools.train`, in a folder that has the name of one for libraries."""
    site = tmp_path / "site-packages"
    for folder in (site / "mine" / "tools", site / "mine" / "data", site / "yolish"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (site / "mine" / "__init__.py").touch()
    known = folders(site, INSTALLED, main=site / "mine" / "tools" / "train.py")
    assert known.module_file(f"{site}/mine/tools/train.py") == ""
    assert known.module_file(f"{site}/mine/data/rows.py") == ""
    assert known.module_file(f"{site}/yolish/data.py") == "yolish/data.py"


def test_a_project_may_be_reached_through_a_link(tmp_path: Path):
    """The import path has the script's real folder, and the script the one that was typed."""
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "dep-1.0.dist-info").mkdir(parents=True)
    link.symlink_to(real)
    known = folders(real, INSTALLED, main=link / "train.py")
    assert known.module_file(f"{link}/train.py") == ""
    assert known.module_file(f"{real}/model.py") == ""
    (tmp_path / "train.py").symlink_to(real / "train.py")
    known = folders(real, INSTALLED, main=tmp_path / "train.py")
    assert known.module_file(f"{real}/model.py") == ""


def test_packages_in_a_folder_of_their_own_are_installed_and_those_in_place_are_not(tmp_path: Path):
    vendored, source = tmp_path / "vendored", tmp_path / "src"
    (vendored / "yolish-1.0.dist-info").mkdir(parents=True)
    (source / "mine.egg-info").mkdir(parents=True)
    known = folders(tmp_path, vendored, source, tmp_path / "a.zip", main=tmp_path / "train.py")
    assert known.module_file(f"{vendored}/yolish/data.py") == "yolish/data.py"
    assert known.module_file(f"{source}/mine/data.py") == ""


def test_torchs_own_checkout_is_torch(tmp_path: Path):
    file = str(tmp_path / "pytorch" / "torch" / "__init__.py")
    known = folders(tmp_path, main=tmp_path / "pytorch" / "train.py", torch_file=file)
    assert known.module_file(f"{tmp_path}/pytorch/torch/nn/x.py") == "torch/nn/x.py"
    assert known.module_file(f"{tmp_path}/pytorch/tools/x.py") == ""


def test_the_program_of_a_library_is_a_librarys():
    known = folders(INSTALLED, main=f"{INSTALLED}/yolish/__main__.py")
    assert known.module_file(f"{INSTALLED}/yolish/data.py") == "yolish/data.py"


def test_the_command_of_an_installed_package_is_a_librarys_and_a_script_beside_it_is_not():
    commands = sysconfig.get_path("scripts")
    known = folders(commands, INSTALLED, main=f"{commands}/yolo")
    assert known.module_file(f"{commands}/yolo") == "yolo"
    known = folders(commands, INSTALLED, main=f"{commands}/train.py")
    assert known.module_file(f"{commands}/train.py") == ""


def test_records_that_do_not_say_are_read_by_usual_paths():
    guessed = CodeFolders()
    assert guessed.module_file("/venv/lib/python3.11/site-packages/PIL/Image.py") == "PIL/Image.py"
    assert guessed.module_file("/usr/lib/python3.11/queue.py") == "queue.py"
    assert guessed.module_file("/home/ann/train.py") == ""


def places(*files: str) -> tuple[str, str]:
    """Return the files of the lines that led to a call in the last file, of the script and else."""
    scope: dict = {"call": call_places}
    for file in reversed(files):
        exec(compile("def led_here(): return call()", file, "exec"), scope)  # noqa: S102
        scope = {"call": scope["led_here"]}
    script, library = scope["call"]()
    return script.file, library.file


LOADER = f"{torch.utils.data.__path__[0]}/dataloader.py"
DATA = f"{INSTALLED}/yolish/data.py"


@pytest.mark.parametrize(
    ("files", "script", "library"),
    [
        (("/x/train.py", LOADER), "/x/train.py", ""),
        (("/x/torch/utils/data/loader.py", LOADER), "/x/torch/utils/data/loader.py", ""),
        (("/x/train.py", DATA, LOADER), "/x/train.py", DATA),
        (("/x/train.py", DATA, "/x/build.py", LOADER), "/x/build.py", ""),
    ],
)
def test_the_lines_that_led_to_a_call(files: tuple[str, ...], script: str, library: str):
    assert places(*files) == (script, library)


def test_the_constructor_of_a_subclass_is_not_what_constructs():
    class Loader:
        def __init__(self) -> None:
            self.place, _ = call_places(self)

    class Kept(Loader):
        def __init__(self) -> None:
            super().__init__()

    made = Kept()
    assert made.place.function == "test_the_constructor_of_a_subclass_is_not_what_constructs"
