"""The benchmark of the diagnosis: its cases hold, and what the doctor says is judged rightly."""

from __future__ import annotations

import ast
import sys
import tokenize

import first_scores
import pytest
from cases import CASES, MARK, Case
from outcome import Outcome
from project_cases import PROJECTS
from real_cases import REAL
from truth import own_rate, run_hanging_script, script_environment
from unseen_cases import UNSEEN

ALL = (*CASES, *UNSEEN, *REAL, *PROJECTS)
BOUND = Case(
    name="dcgan",
    style="",
    folder=REAL[0].folder,
    rule="cpu-bound-worker",
    also="slow-collate",
    within=("Blur",),
    removals={"move-code": ("--blur", "0"), "workers": ("--workers", "{n}")},
)
HEALTHY = Case(name="healthy_plain", style="", rule=None)


def finding(rule, *, severity="critical", title="", remedies=(), **cause):
    return {
        "rule": rule,
        "title": title,
        "severity": severity,
        "cause": {"file": "", "line": 0, "function": "", "transform": "", **cause},
        "remedies": [
            {"name": name, "change": change, "predicted_speedup": gain, "low": 1.0, "high": 9.0}
            for name, change, gain in remedies
        ],
    }


def outcome(case, *findings, measured=None):
    return Outcome(case=case, findings=list(findings), sentence="", measured=measured)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_case_has_its_script_and_the_lines_at_fault_are_in_it(case):
    for file in case.files:
        ast.parse((case.folder / file).read_text())
    assert case.script.is_file()
    assert case.rule is not None or not (case.lines or case.within or case.removals)


def test_names_are_unique_and_the_published_styles_are_at_least_twenty():
    names = [case.name for case in ALL]
    assert len(set(names)) == len(names)
    assert len(REAL) >= 20
    assert {path.stem for path in REAL[0].script.parent.glob("*.py")} == {
        case.name for case in REAL
    }


def test_every_project_has_a_case_and_its_files_do_not_mark_the_fault():
    folder = PROJECTS[0].folder
    assert {path.name for path in folder.iterdir()} == {case.name for case in PROJECTS}
    marked = [
        file for case in PROJECTS for file in case.files if MARK in (folder / file).read_text()
    ]
    assert marked == []


def test_no_published_script_says_where_its_fault_is():
    for case in REAL:
        with tokenize.open(case.script) as file:
            kinds = {token.type for token in tokenize.generate_tokens(file.readline)}
        assert tokenize.COMMENT not in kinds, case.name


def test_a_line_that_is_in_the_script_twice_or_never_is_refused(tmp_path):
    (tmp_path / "two.py").write_text("slow()\nslow()\n")
    for line in ("slow()", "fast()"):
        with pytest.raises(ValueError, match="must be there once"):
            _ = Case(name="two", style="", rule="x", folder=tmp_path, at=(line,)).lines


@pytest.fixture
def project(tmp_path):
    (tmp_path / "shop" / "models").mkdir(parents=True)
    (tmp_path / "shop" / "train.py").write_text("import models.train\n")
    (tmp_path / "shop" / "models" / "train.py").write_text("def train():\n    slow()\n")
    return Case(name="shop", style="", rule="x", folder=tmp_path, is_project=True, at=("slow()",))


def test_the_line_of_a_project_is_in_one_of_its_files(project, tmp_path):
    assert project.script == tmp_path / "shop" / "train.py"
    assert project.lines == {"shop/models/train.py:2"}
    (tmp_path / "shop" / "models" / "other.py").write_text("slow()\n")
    with pytest.raises(ValueError, match="must be there once"):
        _ = project.lines


@pytest.mark.parametrize(
    ("file", "line", "right"),
    [
        ("shop/models/train.py", "shop/models/train.py:2", True),
        ("shop/train.py", "shop/train.py:2", False),
        ("library/models/train.py", "train.py:2", False),
    ],
)
def test_files_of_one_name_differ_by_their_folders(project, file, line, right):
    found = outcome(project, finding("x", file=f"/elsewhere/{file}", line=2))
    assert found.line == line
    assert found.line_right is right


@pytest.mark.parametrize(
    ("title", "right"),
    [
        ("evaluation waits for the loader at net.py:2", True),
        ("evaluation waits for the loader at net.py:20", False),
        ("evaluation waits for the loader at train.py:2", False),  # there are two of that name
        ("", False),
    ],
)
def test_a_line_that_the_title_names_is_named(project, title, right):
    (project.script.parent / "net.py").write_text("fine = 1\nloader = make()  # at fault\n")
    found = outcome(project, finding("x", title=title, file="/elsewhere/shop/train.py", line=1))
    assert found.line_right is right


@pytest.mark.parametrize(
    ("cause", "right"),
    [
        ({"function": "Data.__getitem__ > Blur.forward"}, True),
        ({"transform": "GaussianBlur"}, True),
        ({"function": "main", "line": 5, "file": "dcgan.py"}, False),
        ({}, False),
    ],
)
def test_a_function_at_fault_is_right_wherever_it_is_named(cause, right):
    told = outcome(BOUND, finding("cpu-bound-worker", **cause))
    assert told.line_right is right
    assert told.right is right


@pytest.mark.parametrize("severity", ["warning", "serious", "critical"])
def test_a_control_is_right_only_without_a_headline(severity):
    assert outcome(HEALTHY).right
    assert outcome(HEALTHY, finding("compute-bound", severity="info")).right
    headline = finding("data-wait", severity=severity)
    assert not outcome(HEALTHY, finding("compute-bound", severity="info"), headline).right


def test_the_promise_is_the_best_remedy_that_the_case_can_apply():
    remedies = [("workers", "4 workers instead of 1", 2.0), ("move-code", "no Blur", 3.0)]
    both = outcome(BOUND, finding("cpu-bound-worker", remedies=remedies), measured=2.5)
    assert both.promise.removal == ("--blur", "0")
    assert both.error == pytest.approx(0.2)
    one = outcome(BOUND, finding("slow-collate", remedies=remedies[:1]))
    assert one.promise.removal == ("--workers", "4")
    assert one.error is None


def test_a_wrong_rule_and_an_unpredicted_remedy_promise_nothing():
    remedies = [("move-code", "no Blur", 3.0)]
    assert outcome(BOUND, finding("too-few-workers", remedies=remedies)).promise is None
    assert (
        outcome(BOUND, finding("cpu-bound-worker", remedies=[("move-code", "", None)])).promise
        is None
    )
    assert outcome(HEALTHY, finding("cpu-bound-worker", remedies=remedies)).promise is None


def test_a_first_score_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(first_scores, "FILE", tmp_path / "first_scores.json")
    first_scores.add_first_score("nanogpt", {"rule_right": False})
    first_scores.add_first_score("nanogpt", {"rule_right": True})
    first_scores.add_first_score("dcgan", {"rule_right": True})
    first_scores.add_first_score("shop", {"rule_right": True})
    kept = first_scores.read_first_scores(["nanogpt", "dcgan", "simclr"])
    assert {name: score["rule_right"] for name, score in kept.items()} == {
        "nanogpt": False,
        "dcgan": True,
    }
    assert all(score["commit"] and score["torch"] for score in kept.values())


def test_the_rate_is_the_last_one_that_a_script_prints(tmp_path):
    (tmp_path / "twice.py").write_text(
        "import sys\nprint('9.5 images/s')\nprint('done at 12.25 images/s')\n"
        "print('100%|##| 8/8 [00:03<00:00, 240.1 examples/s]', file=sys.stderr)\n"
    )
    twice = Case(name="twice", style="", rule=None, folder=tmp_path)
    assert own_rate(twice, None) == 12.25
    silent = Case(name="silent", style="", rule=None, folder=tmp_path)
    (tmp_path / "silent.py").write_text("")
    with pytest.raises(SystemExit, match="printed no rate"):
        own_rate(silent, None)


def test_a_script_that_hangs_is_ended():
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    run_hanging_script(command, None, ended_after_s=0.1)


def test_a_script_that_was_to_hang_and_did_not_is_an_error():
    command = [sys.executable, "-c", "print('no fault here'); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match="ended with 3:\nno fault here"):
        run_hanging_script(command, None, ended_after_s=120.0)


def test_a_script_gets_the_folder_of_its_data_and_what_removes_its_fault(tmp_path):
    case = Case(name="x", style="", rule=None, arguments=("{data}/x",))
    assert case.script_arguments(tmp_path, ("-n", "2")) == [f"{tmp_path}/x", "-n", "2"]


def test_what_is_on_the_path_of_modules_stays_there(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/libraries")
    assert script_environment(None)["PYTHONPATH"].split(":")[-1] == "/libraries"
