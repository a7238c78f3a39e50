"""The page in a browser without a window: every figure is drawn, and the console stays silent."""

import re
import shutil
import subprocess

import pytest
from tests.unit.lab.made_up import made_up

from brigade.lab.report.page import report_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRAWN = re.compile(r'<svg class="main-svg"')
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")


def open_page(page, directory):
    """Return the document as the browser has made it, and what its console says."""
    file = directory / "page.html"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory / 'profile'}",
            "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", file.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("count", [1, 2])
def test_every_figure_is_drawn_without_a_word_in_the_console(tmp_path, count):
    hostile = [made_up(3, title="<script>console.error('x')</script>"), made_up(12, title="b", spares=2)]
    document, said = open_page(report_page(hostile[:count]), tmp_path)
    assert said == []
    wanted = [
        "over-time",
        "over-tokens",
        *(f"{each}-{i}" for i in range(count) for each in ("fleet", "waits", "pipeline")),
    ]
    for figure in wanted:
        _, _, behind = document.partition(f'<div id="{figure}"')
        assert DRAWN.search(behind[: behind.find("</script>")]), figure


def test_mistakes_would_be_seen(tmp_path):
    wrong = "<script>undefined_function()</script>"
    outside = "<script src='https://example.org/x.js'></script>"
    page = report_page([made_up(2, timelines=False)]).replace("</body>", f"{wrong}{outside}</body>")
    _, said = open_page(page, tmp_path)
    assert [text in line for text, line in zip(("undefined_function", "example.org"), said, strict=True)] == [
        True,
        True,
    ]
