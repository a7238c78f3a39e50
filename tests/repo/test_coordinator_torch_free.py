"""The coordinator starts on the cheapest machine: nothing that it imports imports torch."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "matplotlib", "pandas")

PROGRAM = """
import importlib, json, pkgutil, sys
import brigade.coordinator
names = [module.name for module in pkgutil.walk_packages(brigade.coordinator.__path__, "brigade.coordinator.")]
for name in names:
    importlib.import_module(name)
print(json.dumps({"imported": names, "loaded": sorted({name.split(".")[0] for name in sys.modules})}))
"""


def test_no_module_of_the_coordinator_loads_torch():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["imported"]) == len(list((ROOT / "coordinator/brigade/coordinator").glob("[!_]*.py")))
    assert report["imported"]
    assert not set(HEAVY) & set(report["loaded"])
