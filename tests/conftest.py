"""What all tests share: golden files and how hypothesis behaves."""

from pathlib import Path

import pytest
from hypothesis import settings

GOLDEN = Path(__file__).parent / "golden"

# Machines that run many tests at once are slow in jumps: no deadline for a single example.
settings.register_profile("brigade", deadline=None, print_blob=True)
settings.load_profile("brigade")


def pytest_addoption(parser):
    parser.addoption(
        "--regenerate-golden",
        action="store_true",
        help="write the files of tests/golden anew instead of comparing with them; review the difference",
    )


@pytest.fixture
def golden(request):
    """A function (file name, text) that holds text against a golden file, or writes it with --regenerate-golden."""

    def check(file_name, text):
        path = GOLDEN / file_name
        if request.config.getoption("--regenerate-golden"):
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"{path} is missing; make it with: pytest --regenerate-golden {request.node.nodeid}"
        assert text == path.read_text(encoding="utf-8"), (
            f"differs from tests/golden/{file_name}; if that is meant: pytest --regenerate-golden {request.node.nodeid}"
        )

    return check
