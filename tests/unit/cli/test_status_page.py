import io

import pytest
from rich.console import Console

from brigade.cli.status_page import brief, headline, show_status, step_time


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
        "back_link_bytes_per_s": None,
        "back_link_rtt_s": None,
        "forward_codec": "int8:block=64+zstd",
        "backward_codec": "bf16",
        "wait_share": None,
        "gated_share": None,
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
        "throughput": 10240.0,
        "unit": "tokens",
        "usual_step_s": 0.2,
        "predicted_step_s": 0.15,
        "limited_by": "the device of ada: 93% of what these stages can do",
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
                gated_share=0.1,
                forward_bytes=100,
                forward_raw_bytes=400,
            ),
            stage(
                1,
                "grace [x]",
                (2, 3),
                back_link_bytes_per_s=2e6,
                back_link_rtt_s=0.02,
                backward_bytes=100,
                backward_raw_bytes=200,
            ),
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


def page(status, width=80):
    out = io.StringIO()
    show_status(status, Console(file=out, width=width))
    return out.getvalue()


def test_the_page_shows_progress_stages_links_and_nodes(status):
    lines = [line.rstrip() for line in page(status).splitlines()]
    assert lines == [
        "quickstart: training, 120 of 400 steps done",
        "loss 2.5000, validation loss 2.7500 after step 100, checkpoint after step 100",
        "10,240 tokens/s, a step takes 200 ms (predicted: 150 ms), 1:01 left",
        "limited by the device of ada: 93% of what these stages can do",
        "",
        "stage  node       blocks  compute  waiting  at step end",
        "    0  ada        0-1         50%      25%          10%",
        "    1  grace [x]  2           50%        -            -",  # brackets are no markup
        "",
        "link              carries      smaller  link speed        codec",
        "ada -> grace [x]  activations     4.0x  550 MB/s, 0.4 ms  int8:block=64+zstd",
        "grace [x] -> ada  gradients       2.0x  2 MB/s, 20.0 ms   bf16",
        "",
        "plan: three stages pay",
        "",
        "node  stage  device        heard  doing",
        "ada       0  cpu: x86  0.3 s ago  forward of microbatch 2",
        "idle  spare  cpu: x86  1.0 s ago  leaving",
    ]


def test_no_line_is_wider_than_a_small_terminal_and_no_row_takes_two(status):
    names = ("a-workstation-with-a-long-name", "the-old-laptop-under-the-stairs", "c")
    status["stages"] = [
        stage(
            k,
            name,
            (k, k + 1),
            forward_codec="int8:block=64,rounding=stochastic+zstd:level=3",
            link_bytes_per_s=5.5e8,
            link_rtt_s=0.0004,
        )
        for k, name in enumerate(names)
    ]
    doing = "waiting for the activation of microbatch 12 of step 10345 from stage 0"
    node = status["nodes"][0] | {"device": "cpu: Some Processor(R) 8481C CPU @ 2.00GHz", "doing": doing}
    status["nodes"] = [node | {"node": name} for name in names]
    lines = page(status).splitlines()
    assert max(map(len, lines)) <= 80
    for part in ("int8:block=64", "waits for activation 12 from sta"):
        assert sum(part in line for line in lines) >= 2, part
    assert len(lines) == 4 + 1 + 4 + 1 + 5 + 2 + 1 + 4


def test_classifiers_have_samples_and_one_step_is_one_step(status):
    lines = headline(status | {"unit": "samples", "throughput": 12.0, "max_steps": 1, "step": 1})
    assert lines[0] == "quickstart: training, 1 of 1 step done"
    assert lines[2].startswith("12 samples/s, ")


def test_a_run_that_has_not_begun_says_what_it_waits_for(status):
    early = status | {
        "state": "gathering",
        "waiting_for": "nodes (1 of 3, giving up in 9:58)",
        "step": 0,
        "stages": [],
        "loss": None,
        "validation_loss": None,
        "time_left_s": None,
        "checkpoint_steps": None,
        "throughput": 0.0,
        "usual_step_s": None,
        "predicted_step_s": None,
    }
    assert headline(early) == [
        "quickstart: gathering, 0 of 400 steps done",
        "waiting for nodes (1 of 3, giving up in 9:58)",
    ]
    assert "stage" in page(early), "of the nodes"


def test_the_end_has_its_reason_and_its_model(status):
    over = status | {"state": "failed", "reason": "lost ada: no pulse for 15 s", "model": "runs/x/model.safetensors"}
    lines = headline(over)
    assert "reason: lost ada: no pulse for 15 s" in lines
    assert "model: runs/x/model.safetensors" in lines


@pytest.mark.parametrize(
    ("doing", "shown"),
    [
        ("waiting for the gradient of microbatch 3 of step 12 from stage 1", "waits for gradient 3 from stage 1"),
        ("forward of microbatch 2 of step 12", "forward of microbatch 2"),
        ("updating (step 4)", "updating (step 4)"),
        ("waiting for the coordinator", "waiting for the coordinator"),
        ("", ""),
    ],
)
def test_what_a_node_does_is_brief(doing, shown):
    assert brief(doing) == shown


@pytest.mark.parametrize(("seconds", "shown"), [(0.085, "85 ms"), (2.314, "2.31 s"), (62, "1:02")])
def test_the_time_of_a_step(seconds, shown):
    assert step_time(seconds) == shown
