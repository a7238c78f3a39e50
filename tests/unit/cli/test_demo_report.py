import io
import json
import sys

import pytest
from rich.console import Console

from brigade.cli.demo_report import DemoReport, link_traffic, show, write_json
from brigade.wire.message_parts import StageStatistics
from brigade.wire.plan import NodeContact, StagePlan


def stage(name, first, end):
    contact = NodeContact(node_id=name * 4, name=name, public_key="", endpoint="tcp://127.0.0.1:1")
    return StagePlan(
        contact=contact, first_block=first, end_block=end, forward_codec="bf16", backward_codec="int8:block=64"
    )


STAGES = [stage("ada", 0, 2), stage("grace", 2, 4), stage("linus", 4, 6)]
# 100 tokens over a boundary of 128 numbers: 512 raw bytes a token; forward in 2 bytes a number, backward in 1.
STATISTICS = [
    StageStatistics(forward_bytes=25_600, forward_raw_bytes=51_200, tokens=100),
    StageStatistics(
        forward_bytes=25_600, forward_raw_bytes=51_200, backward_bytes=12_800, backward_raw_bytes=51_200, tokens=100
    ),
    StageStatistics(backward_bytes=12_800, backward_raw_bytes=51_200, tokens=100),
]


def test_each_link_has_its_bytes_per_token():
    links = {(link.source, link.target): link for link in link_traffic(STAGES, STATISTICS)}
    assert set(links) == {("ada", "grace"), ("grace", "linus"), ("grace", "ada"), ("linus", "grace")}
    forward, backward = links["ada", "grace"], links["linus", "grace"]
    assert (forward.carries, forward.codec) == ("activations", "bf16")
    assert (forward.bytes_per_token, forward.raw_bytes_per_token, forward.ratio) == (256.0, 512.0, 2.0)
    assert (backward.carries, backward.codec) == ("gradients", "int8:block=64")
    assert (backward.bytes_per_token, backward.ratio) == (128.0, 4.0)


def test_one_stage_has_no_links_and_no_tokens_is_no_division():
    assert link_traffic(STAGES[:1], STATISTICS[:1]) == []
    idle = link_traffic(STAGES[:2], [StageStatistics(), StageStatistics()])
    assert [link.ratio for link in idle] == [0.0, 0.0]


@pytest.fixture
def report():
    return DemoReport(
        run_dir="runs/demo",
        steps=2,
        parameters=860_000,
        tokens=4096,
        training_s=2.0,
        stages=["ada", "grace", "linus"],
        train_loss=[(1, 5.5), (2, 5.0)],
        evaluations=[(2, 5.1)],
        validation_loss=5.1,
        unigram_loss=3.325,
        bigram_loss=2.497,
        links=link_traffic(STAGES, STATISTICS),
        sample="BRUTUS:\n[not markup] Ay.",
        model="runs/demo/model.safetensors",
        next_command="brigade up examples/quickstart/run.toml",
        curve="runs/demo/loss.png",
    )


def test_the_page_says_all_of_it(report):
    out = io.StringIO()
    show(report, Console(file=out, width=100))
    page = out.getvalue()
    for part in (
        "3.325",
        "2.497",
        "5.100",
        "ada -> grace",
        "2.0x",
        "[not markup] Ay.",
        "2,048 tokens/s",
        "runs/demo/model.safetensors",
        "runs/demo/loss.png",
    ):
        assert part in page, part
    assert "brigade up examples/quickstart/run.toml" in page


def test_a_missing_plot_library_is_told(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotext", None)
    out = io.StringIO()
    show(report, Console(file=out, width=100))
    assert "pip install 'bucket-brigade[plot]'" in out.getvalue()


def test_the_json_holds_all_of_it(report, tmp_path):
    write_json(report, tmp_path / "new" / "demo.json")
    facts = json.loads((tmp_path / "new" / "demo.json").read_text())
    assert facts["validation_loss"] == 5.1
    assert facts["train_loss"] == [[1, 5.5], [2, 5.0]]
    assert facts["links"][0]["ratio"] == 2.0
    assert set(facts) == set(DemoReport.__dataclass_fields__)
