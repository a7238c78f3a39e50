"""Where things lie: import roots, what they may hold, how files may be called and how long they may be."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOTS = sorted(path.parent.name for path in ROOT.glob("*/brigade"))
LONGEST_FILE = 400
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


def tracked_files():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in listing.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def in_order(names):
    """Roots in the order of the layers, whatever the order on disk."""
    return sorted(names)


def test_every_root_is_listed_wherever_tools_look():
    assert "wire" in ROOTS
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert in_order(PYPROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]) == ROOTS
    assert in_order(wheel) == [f"{name}/brigade" for name in ROOTS]
    assert in_order(set(PYPROJECT["tool"]["pytest"]["ini_options"]["pythonpath"]) - {"."}) == ROOTS
    assert in_order(PYPROJECT["tool"]["mypy"]["mypy_path"]) == ROOTS
    assert in_order(PYPROJECT["tool"]["mypy"]["files"]) == [f"{name}/brigade" for name in ROOTS]
    assert set(ROOTS) <= set(PYPROJECT["tool"]["ruff"]["src"])


def test_mypy_reads_files_not_packages():
    mypy = PYPROJECT["tool"]["mypy"]
    assert mypy["explicit_package_bases"] is True
    assert mypy["strict"] is True
    assert "packages" not in mypy
    assert "--import-mode=importlib" in PYPROJECT["tool"]["pytest"]["ini_options"]["addopts"]


@pytest.mark.parametrize("root", ROOTS)
def test_a_root_holds_its_door_and_its_portion_of_the_namespace(root):
    assert not (ROOT / root / "brigade" / "__init__.py").exists(), "it would hide every other portion of brigade"
    tracked = {path.relative_to(ROOT / root).parts[0] for path in tracked_files() if (ROOT / root) in path.parents}
    assert tracked == {"README.md", "brigade"}
    portion = {path.name for path in (ROOT / root / "brigade").iterdir()} - {"__pycache__"}
    assert portion == {root}
    assert (ROOT / root / "brigade" / root / "py.typed").is_file()


def test_no_module_is_named_like_one_of_the_standard_library():
    taken = sys.stdlib_module_names | {"compression"}  # of 3.14
    clashes = [
        str(path.relative_to(ROOT))
        for root in ROOTS
        for path in (ROOT / root / "brigade" / root).rglob("*.py")
        if path.stem != "__init__" and path.stem in taken
    ]
    assert not clashes


def test_tests_are_no_package():
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_package_files_hold_a_docstring_only():
    for root in ROOTS:
        for path in (ROOT / root).rglob("__init__.py"):
            (only,) = ast.parse(path.read_text()).body
            assert isinstance(only, ast.Expr), path
            assert isinstance(only.value, ast.Constant), path


def test_every_module_says_what_it_is_for():
    for root in ROOTS:
        for path in (ROOT / root).rglob("*.py"):
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} has no docstring"


def test_no_file_is_too_long():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked_files()
        if path.suffix == ".py" and (lines := len(path.read_text().splitlines())) > LONGEST_FILE
    }
    assert not long


def test_names_say_something():
    bad = [
        str(path.relative_to(ROOT))
        for path in tracked_files()
        if {path.stem.lower(), *(part.lower() for part in path.relative_to(ROOT).parts)} & NAMES_THAT_SAY_NOTHING
    ]
    assert not bad
