"""The page: it holds what it should, shows names as they are, needs no network, and bears whatever a result may lack."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace as changed
from tests.unit.lab.made_up import made_up, made_up_result

from brigade.lab.report.facts import EXPLANATIONS, FACTS
from brigade.lab.report.page import headline, report_page
from brigade.lab.report.reported import with_own_titles
from brigade.lab.result import Losses, Point

HOSTILE = '<script>alert("x")</script>&<b>'


class Shape(HTMLParser):
    """Collects the elements that matter, and the text outside of scripts and styles."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.targets, self.text, self._inside = [], set(), set(), [], ""

    def handle_starttag(self, tag, attrs):
        facts = dict(attrs)
        self.tags.append((tag, facts))
        self.ids |= {facts["id"]} if "id" in facts else set()
        self.targets |= {facts["href"]} if "href" in facts else set()
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag):
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data):
        if not self._inside:
            self.text.append(data)


def shape_of(runs):
    shape = Shape()
    shape.feed(report_page(runs))
    return shape


@pytest.mark.parametrize("nodes", [1, 2, 12, 64])
def test_all_figures_are_there_for_any_number_of_nodes(nodes):
    shape = shape_of([made_up(nodes)])
    assert {"over-time", "over-tokens", "fleet-0", "waits-0", "pipeline-0"} <= shape.ids


def test_it_needs_nothing_from_outside():
    shape = shape_of([made_up()])
    loaded = [facts.get("src") or facts.get("href") for tag, facts in shape.tags if tag in ("script", "link", "img")]
    assert loaded
    assert not any(loaded)
    policies = [f["content"] for tag, f in shape.tags if tag == "meta" and "http-equiv" in f]
    assert policies[0].startswith("default-src 'none';")


def test_every_link_leads_to_an_explanation():
    shape = shape_of([made_up()])
    assert len(shape.targets) > 5
    assert {target.removeprefix("#") for target in shape.targets} <= shape.ids
    assert {fact.explained for fact in FACTS} - {""} <= {each.anchor for each in EXPLANATIONS}


def test_the_facts_stand_in_the_head():
    text = " ".join(shape_of([made_up(spares=2)]).text)
    for wanted in (
        "4 stages, 2 other nodes", "10 of 10", "1,000 target tokens/s", "2,000 target tokens/s", "50.0%",
        "the uplink of node-0, 10 Mbit/s: 50%", "5.000 → 0.500", "130 B forwards, 120 B backwards", "12.3 MB",
        "80 committed, 0 lost, 0 repeated", "plan 0: the way it is (because)", "runs/made-up/trace.json",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_hostile_names_are_shown_as_they_are():
    result = made_up_result(3, name=HOSTILE, events=((1.0, HOSTILE),), limited_by=HOSTILE, reason=HOSTILE, exit_code=1)
    stages = (f"{HOSTILE}: 0-0", *result.stages[1:])
    run = made_up(3, title=HOSTILE)
    waits = tuple(changed(stage, node=HOSTILE) for stage in result.waits)
    result = changed(result, stages=stages, waits=waits)
    clean = shape_of([made_up(3), made_up(3)])
    shape = shape_of([replace(run, result=result, place=HOSTILE), made_up(3)])
    count = [sum(tag == "script" for tag, _ in each.tags) for each in (clean, shape)]
    assert count[0] == count[1]
    assert "".join(shape.text).count(HOSTILE) >= 6
    page = report_page([replace(run, result=result)])
    assert "alert(" in page
    assert "<script>alert" not in page
    assert not re.search(r'alert\(\\?"x\\?"\)</script>', page)
    assert "<b>" not in "".join(re.findall(r"Plotly\.newPlot\(.*", page))


def test_nulls_and_missing_timelines_are_borne():
    losses = Losses(
        first=None, last=None, validation=None, held_out=((2, None), (9, 1.0)),
        curve=(Point(1, 1.0, 10, None), Point(2, 0.0, 20, 4.0), Point(3, 2.0, 30, None)),
    )  # fmt: skip
    result = made_up_result(
        3, loss=losses, bound_tokens_per_s=None, efficiency=None, limited_by="", exit_code=None, reason="it broke"
    )
    shape = shape_of([replace(made_up(3, timelines=False), result=result)])
    text = " ".join(shape.text)
    assert "There are no timelines of the nodes" in text
    assert "None" not in text
    assert "the coordinator did not end: it broke" in text


def test_a_run_that_never_began_has_a_page():
    nothing = Losses(first=None, last=None, validation=None, curve=(), held_out=())
    result = made_up_result(
        2, loss=nothing, stages=(), waits=(), events=(), seconds=0.0, tokens=0, tokens_per_s=0.0,
        bound_tokens_per_s=None, efficiency=None, steps_committed=0,
    )  # fmt: skip
    text = " ".join(shape_of([replace(made_up(2, timelines=False), result=result)]).text)
    assert "No plan was made." in text


def test_several_runs_have_their_own_titles_columns_and_figures():
    runs = [made_up(2, title="a"), made_up(3, title="b", step_s=0.5), made_up(2, title="a", step_s=2.0)]
    assert [run.title for run in with_own_titles(runs)] == ["a (1)", "b", "a (2)"]
    shape = shape_of(runs)
    assert {"pipeline-0", "pipeline-1", "pipeline-2", "fleet-2"} <= shape.ids
    text = " ".join(shape.text)
    assert "b trains at 2.00 times the speed of a (1)." in text
    assert "a (2) trains at 0.50 times the speed of a (1)." in text


def test_no_run_is_no_page():
    with pytest.raises(ValueError, match="at least one"):
        report_page([])


def test_the_headline_is_one_sentence():
    assert headline(made_up_result()) == (
        "1,000 target tokens/s, where these stages could do 2,000 at best. "
        "Limited by the uplink of node-0, 10 Mbit/s: 50% of what these stages can do."
    )
    assert headline(made_up_result(bound_tokens_per_s=None, limited_by="")) == "1,000 target tokens/s."


def test_a_prediction_is_called_one():
    nothing = Losses(first=None, last=None, validation=None, curve=(Point(1, 1.0, 10, None),), held_out=())
    wire = changed(made_up_result().wire, routes=(), bytes=0)
    result = made_up_result(predicted=True, exit_code=None, wire=wire, loss=nothing)
    text = " ".join(shape_of([replace(made_up(), result=result)]).text)
    assert "predicted, not run" in text
    assert "Predicted: 1,000 target tokens/s" in text
    assert "did not end" not in text
    assert "No loss is known." in text
