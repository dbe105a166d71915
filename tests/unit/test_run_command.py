"""The command line that applies a remedy: the old one, with all that was applied before, too."""

from __future__ import annotations

import pytest

from headrace.core.overrides import parse_overrides
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
         "headrace run --nproc-per-node 2 --apply pin_memory=on train.py --name x"),
        (("--run-dir", "r", "--standalone"),
         "headrace run --standalone --apply pin_memory=on train.py --name x"),
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
