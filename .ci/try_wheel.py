"""Build the distributions and try the wheel as a stranger would: in a clean environment, outside the checkout.

The dependencies are borrowed from the environment that runs this file, so that gigabytes are not installed twice:
a path file names its site-packages. Path files found through a path file are not read, so the editable install stays
invisible and every module must come out of the wheel.
"""

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

IMPORT_EVERYTHING = """
import importlib, importlib.metadata, pkgutil, sys
import brigade
home = sys.argv[1]
names = [module.name for module in pkgutil.walk_packages(brigade.__path__, "brigade.")]
for name in names:
    origin = importlib.import_module(name).__file__
    assert origin.startswith(home), f"{name} comes from {origin}, not from the wheel"
for component in sys.argv[2:]:
    assert f"brigade.{component}" in names, f"the wheel lacks brigade.{component}"
    assert any(file.match(f"brigade/{component}/py.typed") for file in importlib.metadata.files("bucket-brigade"))
from brigade.cli.example import example_file
for name in ("shakespeare.txt", "quickstart/run.toml"):
    assert str(example_file(name)).startswith(home), f"examples/{name} is not in the wheel"
print(f"{len(names)} modules import")
"""


def run(*command: object, cwd: Path) -> str:
    """Run a command and return what it printed; a failure ends the program with its output."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(str(part) for part in command[:3])} failed ({done.returncode}):\n{done.stdout}{done.stderr}"
        )
    return done.stdout.strip()


def main() -> None:
    """Build, install, run and import."""
    components = sorted(path.parent.name for path in ROOT.glob("*/brigade/*/py.typed"))
    with tempfile.TemporaryDirectory() as scratch:
        outside = Path(scratch).resolve()
        run(
            sys.executable, "-m", "build", "--outdir", outside / "dist", ROOT, cwd=outside
        )  # the wheel comes from the sdist
        (wheel,) = (outside / "dist").glob("*.whl")

        clean = outside / "clean"
        venv.create(clean, with_pip=False, symlinks=True)
        python = clean / "bin" / "python"
        (site_packages,) = (clean / "lib").glob("python*/site-packages")
        (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=outside)

        print(run(clean / "bin" / "brigade", "--version", cwd=outside))
        help_text = run(clean / "bin" / "brigade", "--help", cwd=outside)
        assert "join" in help_text, help_text
        print(run(python, "-I", "-c", IMPORT_EVERYTHING, clean, *components, cwd=outside))
        print(run(sys.executable, "-m", "pip", "--python", python, "check", cwd=outside))
    print(f"wheel {wheel.name} works outside the checkout")


if __name__ == "__main__":
    main()
