"""User code that never returns does not keep a process that is told to go."""

import re
import signal

import pytest
from tests.loopback.programs import Programs

pytestmark = pytest.mark.slow

CODE = """
import os
import time

from torch import nn


class Hanging(nn.Linear):
    def forward(self, value):
        if os.path.exists(self.gate):
            print("it hangs", flush=True)
        while os.path.exists(self.gate):
            time.sleep(0.01)
        return super().forward(value)


def build(gate):
    blocks = [nn.Linear(3, 4), Hanging(4, 4), nn.Linear(4, 2)]
    blocks[1].gate = gate
    return blocks
"""
GONE_S = 5.0


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_a_node_whose_forward_hangs_ends_within_five_seconds(tmp_path, number, exit_code):
    with Programs(tmp_path) as programs:
        gate = programs.gate / "hang"
        (tmp_path / "code" / "hanging.py").write_text(CODE)
        model = {"factory": "hanging:build", "arguments": {"gate": str(gate)}}
        path = programs.write_run(model=model, training={"max_steps": 100_000})
        coordinator = programs.ready(path)
        nodes = [programs.join(name, "--trust", "hanging") for name in ("ada", "grace")]
        coordinator.expect(r"^step 2/")
        gate.touch()
        holder = next(node for node in nodes if re.search(r"blocks (0|1) to (1|2)|block 1", node.screen))
        holder.expect("it hangs")
        for node in nodes:
            node.process.send_signal(number)
        assert [node.expect_end(GONE_S + 1.0) for node in nodes] == [exit_code, exit_code]
        assert coordinator.expect_end(30.0) == 1
        assert "left" in coordinator.errors[-1] or "lost" in coordinator.errors[-1], coordinator.screen
        programs.assert_clean()
