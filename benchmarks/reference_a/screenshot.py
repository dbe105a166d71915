"""A chart of a run as a picture, drawn by a browser as the report's reader sees it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.report.open_run import open_run


def heatmap_picture(run: Path, picture: Path) -> None:
    """Write the heatmap of a run's cores, GPUs and workers as a PNG.

    Args:
        run: The run's folder.
        picture: The file.
    """
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("needs chromium: apt install chromium")
    figure = open_run(run).heatmap()
    figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    height = int(figure.layout.height or 400)
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "page.html"
        page.write_text(
            figure.to_html(include_plotlyjs="inline", config={"displayModeBar": False}), "utf-8"
        )
        subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={temporary}/profile", f"--window-size=1000,{height + 20}",
             "--virtual-time-budget=10000", f"--screenshot={picture}", page.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
