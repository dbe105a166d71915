"""The README's commands and script work as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch.distributed as dist

README = Path(__file__).parents[2] / "README.md"
HEADRACE = Path(sys.executable).with_name("headrace")


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_first_script_packs_trains_and_resumes(
    tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    for name in ("cat", "dog"):
        for i in range(24):
            path = tmp_path / "photos" / name / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(i).integers(0, 255, (80, 100, 3), np.uint8)
            cv2.imwrite(str(path), noise)
    commands = next(text for text in snippets("sh") if "headrace data pack" in text)
    for command in commands.strip().splitlines():
        run(command.replace("s3://bucket", s3_url), tmp_path)
    (script,) = snippets("python")
    script = script.replace("s3://bucket", s3_url)
    (tmp_path / "train.py").write_text(script)
    first = run("headrace run train.py", tmp_path)
    assert first.count("epoch done, loss") == 3
    assert "data-wait share" in first
    monkeypatch.chdir(tmp_path)
    exec(script, {"__name__": "__main__"})  # noqa: S102 - in another process than before
    dist.destroy_process_group()  # a script's process leaves it as it ends
    again = capsys.readouterr().out
    assert again == "begins at step 6, epoch 3\n"


def run(command: str, folder: Path) -> str:
    words = command.split()
    assert words[0] == "headrace"
    done = subprocess.run(
        [str(HEADRACE), *words[1:]], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    missing = [link for link in links if "://" not in link and not (README.parent / link).exists()]
    assert links
    assert missing == []
