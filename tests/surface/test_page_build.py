"""The page's script and style in the package are what the sources in `web/` build."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from machine import needs

ROOT = Path(__file__).parents[2]
WEB, BUILT = ROOT / "web", ROOT / "src" / "headrace" / "report" / "static"
SETTINGS = ("package-lock.json", "package.json", "tsconfig.json", "vite.config.ts")


def test_the_built_script_names_the_checksum_of_its_sources():
    sources = [path.relative_to(WEB).as_posix() for path in (WEB / "src").rglob("*.*")]
    checksum = hashlib.sha256()
    for name in sorted([*SETTINGS, *sources]):
        checksum.update(f"{name}\0".encode() + (WEB / name).read_bytes() + b"\0")
    found = re.search(r"checksum (\w+)", (BUILT / "page.js").read_text())
    assert found is not None
    assert found[1] == checksum.hexdigest(), "run `npm ci && npm run build` in web/"


@needs("node")
def test_a_new_build_is_equal(tmp_path: Path):
    copy = tmp_path / "web"
    shutil.copytree(WEB, copy, ignore=shutil.ignore_patterns("node_modules"))
    (tmp_path / "src/headrace/report/static").mkdir(parents=True)
    for command in (["npm", "ci"], ["npm", "run", "check"], ["npm", "run", "build"]):
        done = subprocess.run(
            command, cwd=copy, env={**os.environ, "CI": "1"},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    for name in ("page.js", "page.css"):
        built = (tmp_path / "src/headrace/report/static" / name).read_bytes()
        assert built == (BUILT / name).read_bytes(), f"{name}: run `npm run build` in web/"


def test_the_page_is_small():
    assert (BUILT / "page.js").stat().st_size < 200_000
    assert (BUILT / "page.css").stat().st_size < 30_000
