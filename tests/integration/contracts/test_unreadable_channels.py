"""Channels with files that the user may not read: refused before the script starts, by name.

Root may read everything, so there the jobs run without the capabilities by which it may.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import S3Server

from jobs import DEADLINE_S, clean_environment, headrace, run

_READS_ALL = "-dac_override,-dac_read_search"
SCRIPT = """
import os
folder = os.environ["SM_CHANNEL_TRAIN"]
print("here", sorted(os.listdir(folder)), open(os.path.join(folder, "a.txt")).read(), flush=True)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """A folder with a script and a channel's data."""
    (tmp_path / "images" / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        (tmp_path / "images" / name).write_text("a picture")
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path
    for folder in ("images", "images/deep", "closed"):
        if (tmp_path / folder).exists():
            (tmp_path / folder).chmod(0o755)  # pytest is to remove it


def as_usual_user() -> list[str]:
    """The command before a command by which it may read what anybody may, and no more."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--bounding-set={_READS_ALL}", f"--inh-caps={_READS_ALL}"]


def ran(job: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """A job that reads the channel."""
    arguments = ["run", "--profile", "off", "--contract", "sagemaker", *flags, "train.py"]
    return subprocess.run(
        [*as_usual_user(), *headrace(*arguments)], cwd=job, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False, env=clean_environment(),
    )  # fmt: skip


@pytest.mark.parametrize("flags", [[], ["--nproc-per-node=1"], ["--group=gpu=2"]])
@pytest.mark.parametrize("name", ["", "b.txt", "deep", "deep/c.txt"])
def test_what_may_not_be_read_is_named_and_the_job_refused(
    flags: list[str], name: str, job: Path
) -> None:
    path = job / "images" / name
    path.chmod(0)
    ended = ran(job, *flags, "--channel=train=images")
    path.chmod(0o755)
    assert ended.returncode == 2, ended.stderr
    said = f"images: {path} may not be read. Run `chmod -R +rX {job / 'images'}`.\n"
    assert ended.stderr.count(said) == 1
    assert "Traceback" not in ended.stderr
    assert "here" not in ended.stdout


def test_a_link_into_a_folder_that_may_not_be_entered_is_unreadable(job: Path) -> None:
    (job / "closed").mkdir(mode=0o700)
    (job / "closed" / "x.txt").write_text("a picture")
    (job / "images" / "x.txt").symlink_to(job / "closed" / "x.txt")
    (job / "closed").chmod(0)
    ended = ran(job, "--channel=train=images")
    assert ended.returncode == 2, ended.stderr
    assert "images/x.txt may not be read" in ended.stderr


def test_links_that_lead_nowhere_are_as_the_script_finds_them(job: Path) -> None:
    (job / "images" / "gone.txt").symlink_to("nowhere")
    (job / "images" / "loop.txt").symlink_to("loop.txt")
    ended = ran(job, "--channel=train=images")
    assert ended.returncode == 0, ended.stderr
    assert "here ['a.txt', 'b.txt', 'deep', 'gone.txt', 'loop.txt'] a picture\n" in ended.stdout


def test_so_many_entries_are_asked_about_and_no_more(job: Path) -> None:
    (job / "images" / "deep" / "c.txt").chmod(0)
    # Three entries come before it: a folder's own are told before those of the folders in it.
    asked = (
        "import pathlib\n"
        "from headrace.data.channels.resolve import first_unreadable\n"
        "for most in (3, 4):\n"
        "    print(first_unreadable(pathlib.Path('images'), most=most))\n"
    )
    ended = subprocess.run(
        [*as_usual_user(), sys.executable, "-c", asked], cwd=job, env=clean_environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == "None\nimages/deep/c.txt\n"


def test_objects_that_may_not_be_read_are_refused(
    tmp_path: Path, s3_server: S3Server, s3_url: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ended = run(
        tmp_path, "--profile", "off", "--contract", "sagemaker", "--channel", f"train={s3_url}",
        "train.py", AWS_SECRET_ACCESS_KEY="another",
    )  # fmt: skip
    assert ended.returncode == 1
    assert "403 SignatureDoesNotMatch. Renew or correct the credentials." in ended.stderr
    assert "here" not in ended.stdout
