"""The repository works wherever it lies: no path of somebody's machine, no pointer out of the checkout."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Character classes keep this file from finding itself.
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:wor[k]|hom[e]|roo[t]|User[s]|far[m]|mn[t])/(?:[\w.-]+)|[.][.]/share[d]/")


def tracked_texts():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, listing.stdout.decode().split("\0")):
        path = ROOT / name
        if path.is_file():
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_no_tracked_file_names_a_path_of_one_machine():
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for name, text in tracked_texts()
        for match in MACHINE_PATHS.finditer(text)
    ]
    assert not found


def test_the_pattern_finds_what_it_should():
    assert MACHINE_PATHS.search("see /ho" + "me/ada/runs")
    assert MACHINE_PATHS.search("from ../sha" + "red/specs")
    assert not MACHINE_PATHS.search("https://example.org/home/page")
    assert not MACHINE_PATHS.search("a node's work/life balance")


def test_no_link_leads_out_of_the_checkout():
    for path in ROOT.rglob("*"):
        if path.is_symlink() and not {".venv", ".git"} & set(path.relative_to(ROOT).parts):
            assert path.resolve().is_relative_to(ROOT), path
