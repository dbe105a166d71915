"""The command line that applies a remedy: the old one, with all that was applied before, too."""

from __future__ import annotations

import shlex

import pytest

from headrace.core.overrides import parse_overrides
from headrace.jobs.cli_args import direct_job
from headrace.records.run_folder import Attempt
from headrace.report.run_command import command_with

PINNED = parse_overrides("pin_memory=on")


def attempt(*command: str, argv: tuple[str, ...] = ("train.py", "--name", "x"), **more: object):
    return Attempt(
        number=1, command=command, argv=argv, world_size=1, started_s=0.0, **more
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "headrace run --apply pin_memory=on train.py --name x"),
        (("--name", "base"), "headrace run --apply pin_memory=on train.py --name x"),
        (("--name=base", "--nproc-per-node", "2"),
         "headrace run --apply pin_memory=on --nproc-per-node 2 train.py --name x"),
        (("--run-dir", "r", "--standalone"),
         "headrace run --apply pin_memory=on --standalone train.py --name x"),
        (("--run_dir", "r"), "headrace run --apply pin_memory=on train.py --name x"),
        (("--nproc_per_node=2", "--run_dir=r"),
         "headrace run --apply pin_memory=on --nproc_per_node=2 train.py --name x"),
        (("-m",), "headrace run --apply pin_memory=on -m train.py --name x"),
        (("--run_dir", "r", "--no-python"),
         "headrace run --apply pin_memory=on --no-python train.py --name x"),
        (("--",), "headrace run --apply pin_memory=on train.py --name x"),
        (("--apply", "num_workers=8", "--nnodes", "1", "--"),
         "headrace run --apply num_workers=8,pin_memory=on --nnodes 1 train.py --name x"),
        (("--apply", "num_workers=8"),
         "headrace run --apply num_workers=8,pin_memory=on train.py --name x"),
        (("--apply=pin_memory=off,num_workers=8",),
         "headrace run --apply pin_memory=on,num_workers=8 train.py --name x"),
        (("--apply", "num_workers@train.py:4=8"),
         "headrace run --apply num_workers@train.py:4=8,pin_memory=on train.py --name x"),
    ],
)  # fmt: skip
def test_the_command_is_the_old_one_with_the_remedy(flags: tuple[str, ...], expected: str):
    run = attempt("headrace", "run", *flags, "train.py", "--name", "x")
    assert command_with(run, PINNED) == expected


def test_words_are_quoted_for_a_shell():
    argv = ("my train.py", "$(rm -rf ~)", "")
    run = attempt("headrace", "run", *argv, argv=argv)
    assert command_with(run, PINNED) == (
        "headrace run --apply pin_memory=on 'my train.py' '$(rm -rf ~)' ''"
    )


def test_a_script_that_looks_like_a_flag_stays_behind_the_dashes():
    run = attempt("headrace", "run", "--", "-odd.py", argv=("-odd.py",))
    assert command_with(run, PINNED) == "headrace run --apply pin_memory=on -- -odd.py"


@pytest.mark.parametrize(
    "flags",
    [[], ["--"], ["-m"], ["--run_dir", "r"], ["--run-dir=r", "-m"], ["--apply=num_workers=1"]],
)
def test_the_command_starts_the_same_script_in_the_same_way(flags: list[str]):
    """As the launcher reads it: directly, with what is applied, and in a run folder of its own."""
    script = ("train", "--apply", "x", "--", "--run_dir=y")
    command = command_with(attempt("headrace", "run", *flags, *script, argv=script), PINNED)
    assert command is not None
    before, now = direct_job([*flags, *script]), direct_job(shlex.split(command)[2:])
    assert before is not None
    assert now is not None
    assert now.script == before.script
    assert now.run.run_dir is None
    assert PINNED[0] in now.recording.overrides


@pytest.mark.parametrize(
    "run",
    [
        None,
        attempt("headrace", "run", "train.py", "--name", "x", hides_secrets=True),
        attempt("python", "launch.py"),
        attempt("headrace", "run", "job.toml"),
        attempt("headrace", "run", "--apply", "nothing", "train.py", "--name", "x"),
    ],
)
def test_there_is_none_where_it_would_not_be_the_same_run(run: Attempt | None):
    assert command_with(run, PINNED) is None


def test_there_is_none_without_overrides():
    assert command_with(attempt("headrace", "run", "train.py", "--name", "x"), ()) is None
