"""What the documents say exists: links, paths, commands with their options, and make targets."""

import re
import shlex
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.main import get_command

from brigade.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
FOLDERS = (
    "tests/",
    "examples/",
    "docs/",
    ".ci/",
    "wire/",
    "compression/",
    "partition/",
    "node/",
    "coordinator/",
    "cli/",
    "lab/",
)


def documents():
    listing = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode != 0:
        return sorted(path.relative_to(ROOT) for path in ROOT.glob("*.md"))
    return [Path(name) for name in listing.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


DOCUMENTS = documents()
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=str)


def anchors(text):
    """Return the anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+\s+(.*?)\s*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for match in LINK.finditer(FENCE.sub("", text)):
        target = unquote(match[1] or match[2])
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert path.exists(), f"{document} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path.read_text()), f"{document} links to {target}"


@every_document
def test_paths_in_code_exist(document):
    for text in CODE.findall(FENCE.sub("", (ROOT / document).read_text())):
        path = text.split("::")[0].split(":")[0].rstrip("/")
        if not path.startswith(FOLDERS) or re.search(r"[\s*<>{}$]|\.\.\.", path):
            continue
        places = [ROOT / path, (ROOT / document).parent / path]
        assert any(place.exists() for place in places), f"{document} speaks of {text}"


def shown_commands():
    """Yield (document, command line) for every `brigade ...` and `make ...` that a document shows."""
    for document in DOCUMENTS:
        text = (ROOT / document).read_text()
        lines = [line for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        for line in lines + CODE.findall(FENCE.sub("", text)):
            match = re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\S*/bin/)?((?:brigade|make) .*)", line)
            if match:
                yield document, re.split(r"\s(?:#|&&|\|\|?|&|;|>|    )", match[1] + " ")[0].strip()


COMMANDS = get_command(app).commands
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_commands_that_are_shown_exist():
    for document, line in shown_commands():
        program, *words = shlex.split(line, comments=True)
        if program == "make":
            target = next((word for word in words if re.fullmatch(r"[a-z]+", word)), None)
            assert target in TARGETS, f"{document} shows {line!r}"
            continue
        name, *rest = words
        if name.startswith("-"):
            assert name in {"--help", "-h", "--version", "--install-completion", "--show-completion"}, (
                f"{document} shows {line!r}"
            )
            continue
        if not re.match(r"[a-z]", name):  # `brigade COMMAND`, `brigade <name>`
            continue
        assert name in COMMANDS, f"{document} shows {line!r}"
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts} | {"--help", "-h"}
        for word in rest:
            if word.startswith("-") and len(word) > 1:
                assert word.split("=")[0] in options, f"{document} shows {line!r}, but {name} has no {word}"


def test_the_readme_shows_its_commands():
    shown = {line for document, line in shown_commands() if document == Path("README.md")}
    assert {"make demo", "make test"} <= shown
    assert any(line.startswith("brigade up") for line in shown)
    assert any(line.startswith("brigade join") for line in shown)


def test_every_component_has_a_door_that_says_what_it_must_not_import():
    for root in sorted(path.parent for path in ROOT.glob("*/brigade")):
        text = (root / "README.md").read_text()
        assert "import" in text, f"{root.name}/README.md does not say what {root.name} may not import"


def test_the_license_is_the_one_that_is_declared():
    assert "Apache License" in (ROOT / "LICENSE").read_text()
