"""What is named where libraries make the data, or where what every step runs is slow at times."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headrace.observe.doctor.diagnosis import diagnose
from headrace.observe.doctor.evidence import gather_evidence
from headrace.observe.doctor.findings import Diagnosis
from headrace.records.reader import open_records
from recorded import SCRIPTS, Run, check, record

LIBRARIES = SCRIPTS.parent / "libraries"


def marked(file: Path, words: str) -> int:
    """The number of the line with a comment."""
    return next(n for n, line in enumerate(file.read_text().splitlines(), 1) if words in line)


BUILT = marked(LIBRARIES / "yolish" / "trainer.py", "# constructed here")


@pytest.fixture(scope="module")
def library_only(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("library_only")
    shutil.copytree(LIBRARIES, folder / "vendored")
    (folder / "vendored" / "torchvision-0.1.dist-info").mkdir()  # as `pip install --target` does
    flags = ("--apply", f"num_workers@yolish/trainer.py:{BUILT}=1")
    return record(folder, "library_only", str(folder / "vendored"), flags=flags)


@pytest.fixture(scope="module")
def found(library_only: Run) -> Diagnosis:
    return diagnose(open_records(library_only.folder))


def test_a_librarys_transform_is_named_at_the_line_that_constructs_the_loader(
    library_only: Run, found: Diagnosis
):
    # What the script reads of the dataset without training is an evaluation, long on a busy host.
    of_training = [each for each in found.findings if each.rule != "evaluation"]
    causes = [each.cause for each in of_training if each.cause is not None]
    assert {(Path(each.file).name, each.line) for each in causes} == {("trainer.py", BUILT)}
    assert causes[0].name == "torchvision RandomResizedCrop"
    line = marked(SCRIPTS / "library_only.py", "# called here")
    place = f"yolish (yolish/trainer.py:{BUILT}, called at library_only.py:{line})"
    # Which remedies name it depends on whether other jobs take the cores.
    loader = gather_evidence(open_records(library_only.folder)).loader
    assert loader is not None
    assert place in loader.advice("num_workers", 2)
    assert not any(
        f"library_only.py:{line} takes" in each.title or f"(library_only.py:{line})" in each.title
        for each in found.findings
    )


def test_a_librarys_loader_is_found_by_its_own_line(library_only: Run):
    check(library_only)
    assert [row["workers"] for row in library_only.rows("loaders")] == [0, 0, 0, 0, 0, 1]
    row = library_only.rows("library_loaders")[-1]
    assert (row["line"], row["function"]) == (BUILT, "build")
    folders = {(row["kind"], Path(row["folder"]).name) for row in library_only.rows("code_folders")}
    assert {("library", "vendored"), ("project", "probed"), ("package", "torch")} <= folders


def test_a_loader_that_a_library_makes_of_the_scripts_is_at_the_scripts_line(library_only: Run):
    lines = [row["line"] for row in library_only.rows("loaders")]
    # The library made the last one of the dataset alone, which the script read with another one.
    words = ("# a list", "# a list", "# given here", "# given here", "# read here", "# called here")
    assert lines == [marked(SCRIPTS / "library_only.py", each) for each in words]
    assert [row["function"] for row in library_only.rows("library_loaders")] == ["build"]


def test_warnings_keep_their_places(library_only: Run):
    # The transform warns of its caller in each process, and torch's loader of a line of its own.
    warned = [line.split()[1] for line in library_only.stdout.splitlines() if "warned" in line]
    assert set(warned) == {"dataloader.py", "transforms.py"}
    assert warned.count("transforms.py") <= 4  # the script and three workers keep registries


def test_the_call_of_an_evaluation_is_named_and_not_the_model(tmp_path: Path):
    run = record(tmp_path, "evaluating")
    check(run)
    outliers = {each.rule: each for each in diagnose(open_records(run.folder)).findings}[
        "step-outliers"
    ]
    assert outliers.cause is not None
    assert outliers.cause.line == marked(SCRIPTS / "evaluating.py", "# at fault")
    assert outliers.cause.name == "estimate_loss"
    assert outliers.evidence["every_steps"] == 10
