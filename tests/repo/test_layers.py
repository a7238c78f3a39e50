"""Who may import whom: between components, between cores and edges, and from third parties.

Read from the syntax trees, so that an import inside a function or under TYPE_CHECKING counts as well.
The tables here are the rule; a new edge file or a new dependency is a line in one of them.
"""

import ast
import graphlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "wire": set(),
    "compression": {"wire"},
    "partition": {"wire"},
    "node": {"wire", "compression", "partition"},
    "coordinator": {"wire", "compression", "partition"},
    "lab": {"wire", "compression", "partition", "node", "coordinator"},
    "cli": {"wire", "compression", "partition", "node", "coordinator", "lab"},
}

# Whatever is not listed is a core: it imports nothing that waits, computes on a device or touches the machine.
NOT_IN_A_CORE = {
    "asyncio", "concurrent", "fcntl", "multiprocessing", "os", "psutil", "selectors", "signal", "socket", "sqlite3",
    "subprocess", "threading", "time", "torch", "zmq",
}  # fmt: skip
# Tensor code: torch (and what zstd needs to keep one object a thread), but neither the clock nor sockets nor files.
NOT_IN_TENSOR_CODE = NOT_IN_A_CORE - {"torch", "threading"}
TENSOR_CODE = {
    "compression": "block_int buffers cast chunking codec lossless noise planes raw tensors",
    "partition": "boundaries chain classifiers delay factory generate gpt materialise optimizers reset_audit",
    "node": "autograd_stage boundary_value buffers datasets freezing loss microbatches optimizer parcels randomness"
    " step_buffers step_gradients tied_weights weight_versions",
}
EDGES = {
    "wire": "arrivals connection dialer drive identity listener monitor network network_interfaces private_file probe "
    "resolve sockets state_lock",
    "compression": "",
    "partition": "exported measure",
    "node": "building codec_times coordinator_links daemon data_links device directory emulation files stage_compute stage_shell stage_state "
    "stage_work state_files timeline_file",
    "coordinator": "ask checkpoints collector daemon export file_server forgiving_stream intake ledger_thread listeners planner "
    "mouthpiece progress record run_directory store",
    "lab": "assumed calibration contest crowd examine experiment_files fleet happenings link_choice measuring namespace_delay namespace_entry "
    "namespace_links namespace_record nursery nursery_handle precise_loop relay relay_flow relay_handle "
    "relay_process rival_pipelining rival_plain rival_training runner simulated",
    "cli": "*",  # a command line is nothing but an edge
}

# Import name -> distribution, where they differ.
DISTRIBUTION = {"tomli_w": "tomli-w", "zmq": "pyzmq"}
ONLY_IN = {
    "typer": {"cli"},
    "rich": {"cli", "coordinator", "node"},
    "matplotlib": {"cli"},
    "plotext": {"cli"},
    "plotly": {"lab"},
}


def source_files():
    return sorted(path for name in MAY_IMPORT for path in (ROOT / name / "brigade" / name).rglob("*.py"))


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def component_of(path):
    return path.relative_to(ROOT).parts[0]


def kind_of(path):
    component, stem = component_of(path), path.stem
    if stem in EDGES[component].split() or EDGES[component] == "*":
        return "edge"
    return "tensor code" if stem in TENSOR_CODE.get(component, "").split() else "core"


def imports_of(path):
    """Return the absolute names that a file imports, module by module where a name turns out to be one."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


FILES = source_files()
MODULES = {module_name(path): path for path in FILES}


def brigade_modules(path):
    """Return the modules of this project that a file imports."""
    for name in imports_of(path):
        if not name.startswith("brigade."):
            continue
        module = name if name in MODULES else name.rpartition(".")[0]
        assert module in MODULES, f"{path.relative_to(ROOT)} imports {name}, which does not exist"
        yield module


def test_there_is_something_to_judge():
    assert len(FILES) > 20
    assert {component_of(path) for path in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("component", MAY_IMPORT)
def test_a_component_imports_only_those_below_it(component):
    breaches = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in FILES
        if component_of(path) == component
        for module in brigade_modules(path)
        if module.split(".")[1] not in MAY_IMPORT[component] | {component}
    ]
    assert not breaches


def test_the_table_of_layers_has_no_circle():
    tuple(graphlib.TopologicalSorter(MAY_IMPORT).static_order())


def test_cores_import_nothing_that_waits_or_touches_the_machine():
    forbidden = {"core": NOT_IN_A_CORE, "tensor code": NOT_IN_TENSOR_CODE, "edge": set()}
    breaches = [
        f"{path.relative_to(ROOT)} is {kind_of(path)} and imports {name}"
        for path in FILES
        for name in sorted(imports_of(path))
        if name.split(".")[0] in forbidden[kind_of(path)]
    ]
    assert not breaches


def test_cores_do_not_import_edges():
    order = ["core", "tensor code", "edge"]
    breaches = [
        f"{path.relative_to(ROOT)} ({kind_of(path)}) imports {module} ({kind_of(MODULES[module])})"
        for path in FILES
        for module in brigade_modules(path)
        if order.index(kind_of(MODULES[module])) > order.index(kind_of(path))
    ]
    assert not breaches


def test_edges_and_tensor_code_that_are_listed_exist():
    for table in (EDGES, TENSOR_CODE):
        for component, stems in table.items():
            for stem in set(stems.split()) - {"*"}:
                assert f"brigade.{component}.{stem}" in MODULES, f"{component} has no {stem}.py: take it off the list"


def test_an_edge_that_needs_nothing_of_an_edge_is_a_core():
    idle = [
        str(path.relative_to(ROOT))
        for path in FILES
        if kind_of(path) != "core"
        and component_of(path) != "cli"
        and not {name.split(".")[0] for name in imports_of(path)} & NOT_IN_A_CORE
        and all(kind_of(MODULES[module]) == "core" for module in brigade_modules(path))
    ]
    assert not idle, "these are cores; take them off the list"


def test_modules_do_not_import_in_circles():
    graph = {module_name(path): set(brigade_modules(path)) for path in FILES}
    try:
        tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_every_third_party_import_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["plot"], *extras["report"]]
    declared = {re.match(r"[A-Za-z0-9_-]+", requirement).group().lower() for requirement in wanted}
    for path in FILES:
        for top in {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names) - {"brigade"}:
            assert DISTRIBUTION.get(top, top) in declared, f"{path.relative_to(ROOT)} imports {top}"
            assert component_of(path) in ONLY_IN.get(top, MAY_IMPORT), f"{path.relative_to(ROOT)} imports {top}"
