"""The public names, the verbs and their flags are what is written here, and change only with it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import click
import typer.main

import headrace
import headrace.sagemaker
from headrace.cli.main import build_app

WRITTEN = Path(__file__).with_name("surfaces.json")


def commands(command: click.Command, name: str) -> dict[str, list[str]]:
    """Return each verb with its arguments and flags."""
    if hasattr(command, "commands"):
        found: dict[str, list[str]] = {}
        for child, sub in command.commands.items():
            found |= commands(sub, f"{name} {child}")
        return found
    words: list[str] = []
    for parameter in command.params:
        words += [*parameter.opts, *parameter.secondary_opts]
    return {name: sorted(words)}


def surfaces() -> dict[str, object]:
    return {
        "public names": sorted(headrace.__all__),
        "SageMaker's names": sorted(headrace.sagemaker.__all__),
        "transforms": sorted(headrace.transforms.__all__),
        "verbs": commands(typer.main.get_command(build_app()), "headrace"),
    }


def test_the_surfaces_are_the_written_ones():
    assert surfaces() == json.loads(WRITTEN.read_text())


def test_every_public_name_can_be_had():
    assert all(getattr(headrace, name) is not None for name in headrace.__all__)
    assert set(headrace.__all__) <= set(dir(headrace))


def test_importing_headrace_imports_nothing_heavy():
    code = (
        "import headrace, sys;"
        "print(*({'torch', 'ray', 'cv2', 'pyarrow', 'obstore'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_a_dataset_needs_no_torch():
    code = (
        "import sys, headrace; headrace.ShardDataset;"
        "import headrace.data.loader.workers.forkserver;"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_sagemakers_modules_have_the_names_that_the_package_has():
    modules = ("debugger", "inputs", "instance_group", "pytorch")
    found = {
        name
        for module in modules
        for name in vars(importlib.import_module(f"headrace.sagemaker.{module}"))
        if not name.startswith("__") and name != "annotations"
    }
    assert found == set(headrace.sagemaker.__all__)
