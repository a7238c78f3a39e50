"""A run that cannot begin, or cannot go on, ends on every screen with the same reason, and says whose fault it is."""

import os
import re

import pytest
from tests.loopback.programs import Program, Programs

pytestmark = pytest.mark.slow

ESCAPED = r"ArithmeticError: the block is out of order\\x1b\[31m\\x07 error: forged"


@pytest.fixture
def programs(tmp_path):
    with Programs(tmp_path) as programs:
        yield programs
        programs.assert_clean()


def ended(program: Program, *patterns: str, code: int = 1) -> None:
    """The program ends with this exit code, and one line, no more, matches all patterns.

    A node says what has happened to itself, and then how the run ends.
    """
    assert program.expect_end() == code, program.screen
    told = [line for line in program.errors if all(re.search(pattern, line) for pattern in patterns)]
    assert len(told) == 1, program.screen
    graver = [line for line in program.errors if not line.startswith("warning: ")]
    assert len(graver) <= 1 + (program.name != "coordinator"), program.screen


# --- code that fails --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "where", "error"),
    [
        ("forward-fails", r"forward of microbatch \d, block 1 \(Gated\)", ESCAPED),
        ("backward-fails", r"backward of microbatch \d, blocks? \d", "ArithmeticError: no gradient today"),
        ("loss-fails", r"loss of microbatch \d", "ArithmeticError: the loss is out of order"),
    ],
)
def test_code_that_fails_in_a_step(programs, gate, where, error):
    training = {"max_steps": 100_000, "loss": "gated:loss_behind_a_gate"}
    environment = {"GATE": str(programs.gate)}
    coordinator = programs.ready(programs.write_run(training=training))
    nodes = [programs.join(name, "--verbose", environment=environment) for name in ("ada", "grace")]
    coordinator.expect(r"^step 2/")
    (programs.gate / gate).touch()
    for program in (coordinator, *nodes):
        ended(program, r"stage \d.* failed in step \d+", where, error)
    assert any("Traceback" in path.read_text() for path in programs.home.rglob("nodes/*/log.jsonl"))


@pytest.mark.parametrize(
    ("changes", "patterns"),
    [
        (
            {"model": {"factory": "gated:build_wrongly"}},
            ["gated:build_wrongly failed: LookupError: no such architecture"],
        ),
        ({"model": {"factory": "gated:bild"}}, [r"model\.factory", "no function 'bild'", "did you mean 'build'"]),
        ({"model": {"factory": "gated.sub:build"}}, [r"model\.factory", "gated"]),
        ({"training": {"optim": "Adamm"}}, [r"training\.optim", "Adamm", "Adam"]),
        ({"data": {"factory": "gated:no_data"}}, [r"data\.factory", "no_data"]),
    ],
    ids=["raises", "function", "module", "optimizer", "data"],
)
def test_code_that_cannot_be_built(programs, changes, patterns):
    changes = changes | {"pipeline": {"nodes": 1, "stages": 1}}
    coordinator = programs.ready(programs.write_run(**changes))
    node = programs.join("ada")
    ended(coordinator, "node ada failed", *patterns)
    ended(node, " failed: ", *patterns)


def test_an_optimizer_that_torch_does_not_have_is_refused_before_all_nodes_are_there(programs):
    coordinator = programs.ready(programs.write_run(training={"optim": "Adamm"}))
    node = programs.join("ada")
    for program in (coordinator, node):
        ended(program, r"training\.optim", "'Adamm'", "did you mean Adam")


def test_code_that_the_owner_of_a_machine_does_not_trust(programs):
    coordinator = programs.ready(programs.write_run())
    node = programs.join("ada", "--no-trust")
    ended(node, r"import 'gated:build' \(model\.factory\)", "--trust gated", code=2)
    coordinator.expect(r"warning: node ada has left: .*'gated:build'.*--trust gated")
    assert coordinator.process.poll() is None, "it waits for other nodes"


def test_nodes_with_different_code(programs):
    other = programs.home / "other"
    other.mkdir()
    code = (programs.home / "code" / "gated.py").read_text()
    (other / "gated.py").write_text(code.replace("def build(gate, size=4)", "def build(gate, size=5)"))
    coordinator = programs.ready(programs.write_run())
    path = os.pathsep.join([str(other), programs.environment["PYTHONPATH"]])
    nodes = [programs.join("ada"), programs.join("grace", environment={"PYTHONPATH": path})]
    for program in (coordinator, *nodes):
        ended(program, "not the same on nodes (ada and grace|grace and ada)", "fingerprints", "install the same")


# --- nodes that do not fit --------------------------------------------------------------------------------------------


def test_a_model_that_fits_no_node(programs):
    model = {"arguments": {"gate": str(programs.gate), "size": 700}}
    coordinator = programs.ready(programs.write_run(model=model, pipeline={"nodes": 1, "stages": 1}))
    node = programs.join("ada", "--memory", "1MiB")
    for program in (coordinator, node):
        ended(program, r"no plan: block 1 needs \d.* MiB", r"\(ada\) has 1\.0 MiB")


def test_too_few_nodes(programs):
    coordinator = programs.ready(programs.write_run(pipeline={"gather_timeout_s": 8.0}))
    node = programs.join("ada")
    for program in (coordinator, node):
        ended(program, "only 1 of 2 nodes were there after 8 s")


def test_a_node_that_its_neighbours_cannot_reach(programs):
    coordinator = programs.ready(programs.write_run())
    nodes = [programs.join("ada"), programs.join("grace", "--advertise", "127.0.0.2")]
    coordinator.expect(r"warning: grace takes part but is not reachable at tcp://127.0.0.2:\d+ from ada: .*refused")
    for program in (coordinator, *nodes):
        ended(program, "no plan: .*links fail", "ada to grace: .*127.0.0.2:.* refused")
    assert "step 1" not in coordinator.screen


# --- the whole way over IPv6 ------------------------------------------------------------------------------------------


def test_a_run_over_ipv6(programs):
    listen = ("--listen", "[::1]:0")
    coordinator = programs.ready(programs.write_run(), *listen)
    nodes = [programs.join(name, *listen) for name in ("ada", "grace")]
    assert coordinator.expect_end(60.0) == 0, coordinator.screen
    assert "joined from tcp://[::1]:" in coordinator.screen
    assert not coordinator.errors
    for node in nodes:
        assert node.expect_end() == 0, node.screen
