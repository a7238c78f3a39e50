"""The example of a model and data of one's own does what its page says, over real processes."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from brigade.cli.fleet import Fleet
from brigade.coordinator.run_file import read_run_file
from brigade.node.datasets import open_source
from brigade.partition.exported import load_plain
from brigade.wire.run_spec import FactorySpec

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_model"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory like the example's, with the package on the path of this process and of those that it starts."""
    for name in ("run.toml", "run-arrays.toml"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in {"spirals", "use_model"}]:
        del sys.modules[name]


def write_arrays(folder):
    subprocess.run([sys.executable, "-m", "spirals.data", folder / "spirals.npz"], check=True)


def test_both_run_files_describe_the_same_samples(folder):
    write_arrays(folder)
    arrays = read_run_file(folder / "run-arrays.toml")
    function = open_source(read_run_file(folder / "run.toml").spec.data)
    assert (arrays.data.train_count, arrays.data.validation_count) == (1000, 200)
    for split, count in (("train", 1000), ("validation", 200)):
        for left, right in zip(
            arrays.data.load(split, np.arange(count)), function.load(split, np.arange(count)), strict=True
        ):
            assert torch.equal(torch.as_tensor(left), right)


def test_the_page_builds_the_model_of_the_run_file(folder):
    (arguments,) = re.findall(r"blocks\((.*?)\)\)", (EXAMPLE / "README.md").read_text())
    model = read_run_file(folder / "run.toml").spec.model
    assert isinstance(model, FactorySpec)
    assert arguments == ", ".join(f"{key}={value}" for key, value in model.arguments.items())
    assert f"blocks({arguments})" in (EXAMPLE / "use_model.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("run_file", ["run.toml", "run-arrays.toml"])
def test_it_trains_and_the_model_is_used_in_plain_torch(folder, run_file):
    write_arrays(folder)
    spec = read_run_file(folder / run_file).spec
    run_dir = folder / "runs" / spec.name
    with Fleet() as fleet:
        output = folder / "coordinator.txt"
        coordinator = fleet.start("coordinator", "up", run_file, "--listen", "127.0.0.1:0", output=output)
        fleet.wait_for_file(run_dir / "invite.txt", coordinator, deadline_s=60.0)
        for name in ("a", "b"):
            state = ("--state", folder / name, "--device", "cpu", "--listen", "127.0.0.1:0")
            fleet.start(
                name, "join", run_dir / "invite.txt", "--trust", "spirals", *state, output=folder / f"{name}.txt"
            )
        assert fleet.wait(coordinator) == 0, output.read_text()
    import use_model

    path = run_dir / "model.safetensors"
    model = use_model.load(path)
    assert use_model.accuracy(model) > 0.9  # a third by chance
    points = torch.randn(50, 2)
    assert torch.equal(load_plain(path)(points), model(points))
    if run_file == "run.toml":  # the code that the page shows, as it stands there
        for code in re.findall(r"```python\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL):
            shown = {}
            exec(code, shown)
            assert torch.equal(shown["model"](points), model(points))
    assert msgspec.json.decode((run_dir / "model.json").read_bytes())["name"] == spec.name
