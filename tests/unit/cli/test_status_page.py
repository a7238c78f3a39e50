import io

import pytest
from rich.console import Console

from brigade.cli.status_page import headline, show_status


def stage(index, node, blocks, **changes):
    return {
        "stage": index,
        "node": node,
        "node_id": node * 4,
        "first_block": blocks[0],
        "end_block": blocks[1],
        "parameters": 1000,
        "compute_share": 0.5,
        "link_to": "",
        "link_bytes_per_s": None,
        "link_rtt_s": None,
        "forward_codec": "int8:block=64+zstd",
        "backward_codec": "bf16",
        "wait_share": None,
        "forward_bytes": 0,
        "forward_raw_bytes": 0,
        "backward_bytes": 0,
        "backward_raw_bytes": 0,
        "tokens": 0,
    } | changes


@pytest.fixture
def status():
    return {
        "version": 1,
        "run": "quickstart",
        "run_id": "abcd",
        "state": "training",
        "attempt": 0,
        "generation": 0,
        "waiting_for": "",
        "reason": "",
        "step": 120,
        "max_steps": 400,
        "loss": 2.5,
        "gradient_norm": 1.0,
        "learning_rate": 1e-3,
        "validation_loss": 2.75,
        "validation_step": 100,
        "tokens": 245760,
        "tokens_per_s": 10240.0,
        "step_s": 0.2,
        "time_left_s": 61.0,
        "checkpoint_steps": 100,
        "saving": [],
        "model": "",
        "plan_reason": "three stages pay",
        "stages": [
            stage(
                0,
                "ada",
                (0, 2),
                link_to="grace",
                link_bytes_per_s=5.5e8,
                link_rtt_s=0.0004,
                wait_share=0.25,
                forward_bytes=100,
                forward_raw_bytes=400,
            ),
            stage(1, "grace [x]", (2, 3)),
        ],
        "nodes": [
            {
                "node": "ada",
                "node_id": "aaaabbbbccccdddd",
                "device": "cpu: x86",
                "stage": 0,
                "leaving": False,
                "heard_s_ago": 0.31,
                "step": 120,
                "doing": "forward of microbatch 2",
            },
            {
                "node": "idle",
                "node_id": "eeee",
                "device": "cpu: x86",
                "stage": None,
                "leaving": True,
                "heard_s_ago": 1.0,
                "step": -1,
                "doing": "",
            },
        ],
    }


def page(status):
    out = io.StringIO()
    show_status(status, Console(file=out, width=140))
    return out.getvalue()


def test_the_page_shows_progress_stages_and_nodes(status):
    lines = page(status).splitlines()
    assert lines[0].rstrip() == "quickstart: training, 120 of 400 steps done"
    assert lines[1].rstrip() == (
        "loss 2.5000, validation loss 2.7500 after step 100, 10,240 tokens/s, 0:01:01 left, checkpoint after step 100"
    )
    first = next(line for line in lines if line.strip().startswith("0"))
    for part in ("ada", "0-1", "50%", "-> grace, 550 MB/s, 0.4 ms", "int8:block=64+zstd", "4.0x less", "25%"):
        assert part in first, part
    assert "bf16" not in first, "the first stage sends no gradients"
    last = next(line for line in lines if "grace [x]" in line)  # brackets are no markup
    assert "bf16" in last
    assert "int8" not in last, "the last stage sends no activations"
    assert any("forward of microbatch 2" in line for line in lines)
    assert any("spare" in line and "leaving" in line for line in lines)
    assert any("three stages pay" in line for line in lines)


def test_a_run_that_has_not_begun_says_what_it_waits_for(status):
    early = status | {
        "state": "gathering",
        "waiting_for": "nodes (1 of 3)",
        "step": 0,
        "stages": [],
        "loss": None,
        "validation_loss": None,
        "time_left_s": None,
        "checkpoint_steps": None,
        "tokens_per_s": 0.0,
    }
    assert headline(early) == ["quickstart: gathering, 0 of 400 steps done, waiting for nodes (1 of 3)"]
    assert "stage" in page(early), "of the nodes"


def test_the_end_has_its_reason_and_its_model(status):
    over = status | {"state": "failed", "reason": "lost ada: no pulse for 15 s", "model": "runs/x/model.safetensors"}
    lines = headline(over)
    assert "reason: lost ada: no pulse for 15 s" in lines
    assert "model: runs/x/model.safetensors" in lines


def test_two_codecs_are_both_named(status):
    middle = [stage(0, "a", (0, 1)), stage(1, "b", (1, 2)), stage(2, "c", (2, 3))]
    assert "int8:block=64+zstd / bf16" in page(status | {"stages": middle})
