"""Find the files of `examples/`: beside the import roots in a checkout, inside the package in a wheel."""

from pathlib import Path

from brigade.wire.errors import ConfigError


def example_file(name: str) -> Path:
    """Return the path of `examples/<name>`.

    Raises ConfigError when it was not installed.
    """
    here = Path(__file__).resolve()
    for folder in (here.parent / "examples", here.parents[3] / "examples"):
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f"the example {name} is not installed here")
