"""A mistake in a scenario file names file, key, what was found and what was expected."""

from pathlib import Path

import pytest

from brigade.lab.quantities import parse_rate, show_rate
from brigade.lab.scenario import read_scenario, speed_of
from brigade.lab.scenario_spec import HostSpec, Join, Kill, Leave
from brigade.wire.errors import ConfigError

RUN = """
name = "toy"
[model]
kind = "gpt"
[data]
kind = "text"
path = "text.txt"
sequence_length = 16
[training]
max_steps = 10
[pipeline]
nodes = 3
"""
GOOD = """
name = "homes"
seed = 7

[[host]]
name = "home"
count = 3
up = "80 Mbit/s"
down = "80 Mbit/s"
latency_ms = 12.5

[[host]]
name = "guest"
site = "office"

[[pair]]
between = ["home-1", "office"]
latency_ms = 40

[[event]]
kind = "join"
host = "guest"
at_s = 5

[[event]]
kind = "kill"
host = "home-2"
at_step = 4
"""


EXAMPLES = Path(__file__).parents[3] / "examples" / "lab"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*/scenario.toml")), ids=lambda path: path.parent.name)
def test_a_shipped_scenario_is_sound(path):
    scenario = read_scenario(path)
    assert scenario.spec.name == scenario.run.spec.name == path.parent.name
    assert len(scenario.hosts) == int(path.parent.name[-1]) or path.parent.name == "mixed12"
    assert scenario.spec.limit_s <= 180


@pytest.fixture
def read(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"bucket brigade " * 200)
    (tmp_path / "run.toml").write_text(RUN)

    def read(text, seed=None, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.csv").write_text(content)
        path = tmp_path / "scenario.toml"
        path.write_text(text)
        return read_scenario(path, seed)

    return read


def test_a_good_file_is_read_with_its_job(read):
    scenario = read(GOOD)
    assert [host.name for host in scenario.hosts] == ["home-1", "home-2", "home-3", "guest"]
    assert scenario.starting() == ("home-1", "home-2", "home-3")
    assert scenario.run.spec.name == "toy"
    assert scenario.events == (Join(host="guest", at_s=5.0), Kill(host="home-2", at_step=4))


MISTAKES = {
    "unknown key": ("seed = 7", "sead = 7", "sead is not a known key", "did you mean 'seed'"),
    "unknown key of a host": ("latency_ms = 12.5", "latency = 12.5", "host[0].latency is not a known key", "did you mean 'latency_ms'"),
    "unknown key of an event": ("at_step = 4", "at_steps = 4", "event[1].at_steps is not a known key", "did you mean 'at_step'"),
    "unknown event": ('kind = "kill"', 'kind = "kil"', "event[1].kind: expected one of 'join', 'leave', 'kill'", "did you mean 'kill'"),
    "key of another event": ('host = "home-2"', 'host = "home-2"\nup = "1 Mbit/s"', "event[1].up is not a known key", "known keys: kind, at_s"),
    "not a rate": ('up = "80 Mbit/s"', 'up = "80 Mbps"', "host[0].up: expected a rate such as '80 Mbit/s'", "found '80 Mbps'"),
    "no rate": ('up = "80 Mbit/s"', 'up = "0 Mbit/s"', "host[0].up: '0 Mbit/s': nothing passes", ""),
    "wrong type": ("latency_ms = 12.5", 'latency_ms = "12"', "host[0].latency_ms: expected `float`", "found '12'"),
    "out of range": ("latency_ms = 12.5", "loss = 1.0", "host[0].loss: expected `float` < 1.0", "found 1.0"),
    "missing key": ('name = "homes"\n', "", "name is missing", ""),
    "no moment": ("at_step = 4", "", "event[1]: expected one of at_s", ""),
    "two moments": ("at_step = 4", "at_step = 4\nat_s = 1", "event[1]: expected one of at_s", ""),
    "unknown host": ('host = "home-2"', 'host = "home-9"', "event[1].host: 'home-9' is not known", "did you mean 'home-"),
    "unknown host of a pair": ('["home-1", "office"]', '["home-1", "ofice"]', "pair[0].between: 'ofice' is not known", "did you mean 'office'"),
    "a name twice": ('name = "guest"', 'name = "home-3"', "'home-3' is the name of 2 hosts or sites", ""),
    "no speed": ("latency_ms = 12.5", 'emulate = "fast"', "host[0].emulate: 'fast' is no speed", "2x"),
    "unknown device": ("latency_ms = 12.5", 'device = "rtx-3600"', "host[0].device: 'rtx-3600' is not known", "did you mean 'rtx-3060'"),
    "speed and device": ("latency_ms = 12.5", 'device = "a100"\nemulate = "2x"', "host[0]: emulate and device exclude each other", ""),
    "no run file": ("seed = 7", 'run = "walk.toml"', "there is no run file", "walk.toml"),
    "not TOML": ("seed = 7", "seed : 7", "is not TOML", ""),
    "too many of a kind": ("count = 3", "count = 1000000000", "host[0].count: expected `int` <= 250", "found 1000000000"),
    "too many in all": ("count = 3", "count = 250", "host: expected 1 to 250 hosts, found 251", ""),
    "endless latency": ("latency_ms = 12.5", "latency_ms = inf", "host[0].latency_ms: expected `float` <= 60000.0", "found inf"),
    "no number": ("latency_ms = 12.5", "latency_ms = nan", "host[0].latency_ms: expected `float` >= 0.0", "found nan"),
    "never": ("at_s = 5", "at_s = inf", "event[0].at_s: expected `float` <= 100000000.0", "found inf"),
    "never back": ("at_s = 5", 'at_s = 5\n[[event]]\nkind = "coordinator_kill"\nat_s = 1\nback_after_s = inf', "event[1].back_after_s: expected", "found inf"),
    "endless training": ("seed = 7", "limit_s = inf", "limit_s: expected", "found inf"),
    "too large a seed": ("seed = 7", f"seed = {10**16}", "seed: expected", ""),
    "a number too long to read": ("seed = 7", f"seed = {'9' * 5000}", "is not TOML", ""),
    "too deep": ("seed = 7", f"seed = {'[' * 100000}", "is not TOML", ""),
    "a pair twice": ("[[event]]", '[[pair]]\nbetween = ["office", "home-1"]\nrate = "1 Mbit/s"\n[[event]]', "pair: 2 of them are between 'home-1' and 'office'", "expected one"),
    "a name of no file": ("seed = 7", 'run = "a\\u0000b.toml"', "cannot be read: embedded null byte", ""),
    "a trace of no file": ("seed = 7", 'seed = 7\n[trace]\nfile = "a\\u0000b.csv"', "cannot be read: embedded null byte", ""),
    "too much memory": ("latency_ms = 12.5", f'memory = "{"9" * 400} TiB"', "host[0].memory: '999", "expected at most 1024 TiB"),
    "too slow": ("latency_ms = 12.5", f'emulate = "{"9" * 320} s/GFLOP"', "host[0].emulate: '999", "expected 1e-12 to 1e+12"),
    "too fast a line": ('up = "80 Mbit/s"', f'up = "{"9" * 400} Mbit/s"', "host[0].up: '999", "expected 1 bit/s to 1000000 Gbit/s"),
    "endless trace": ("seed = 7", 'seed = 7\n[trace]\ngenerator = "spot"\nhours = 1e300', "trace.hours: expected `float` <= 10000.0", "found 1e+300"),
    "too many preemptions": ("seed = 7", 'seed = 7\n[trace]\ngenerator = "spot"\n[trace.spot]\npreemptions_per_h = 1e9', "trace.spot.preemptions_per_h: expected `float` <= 3600.0", "found 1000000000.0"),
    "too many comings": ("seed = 7", 'seed = 7\n[trace]\ngenerator = "volunteers"\nhours = 9999\n[trace.volunteers]\nsession_scale_h = 1e-300\nabsence_log_mean = -20', "trace: more than 1,000,000 comings and goings", ""),
    "shape of no distribution": ("seed = 7", 'seed = 7\n[trace]\ngenerator = "volunteers"\n[trace.volunteers]\nsession_shape = 0.0001', "trace.volunteers.session_shape: expected `float` >= 0.05", ""),
    "sigma of no distribution": ("seed = 7", 'seed = 7\n[trace]\ngenerator = "volunteers"\n[trace.volunteers]\nabsence_log_sigma = 1e300', "trace.volunteers.absence_log_sigma: expected `float` <= 10.0", ""),
    "no trace": ("seed = 7", 'seed = 7\n[trace]\nfile = "none.csv"', "none.csv cannot be read", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(read, name):
    old, new, words, more = MISTAKES[name]
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(ConfigError) as caught:
        read(text)
    message = str(caught.value)
    assert words in message
    assert more in message
    assert "\n" not in message
    assert "toml" in message or "csv" in message


def test_there_must_be_enough_hosts_for_the_run_to_begin(read):
    with pytest.raises(ConfigError, match=r"2 hosts take part from the beginning, but .* waits for 3 nodes"):
        read('name = "few"\n[[host]]\nname = "home"\ncount = 2\n')


def test_a_trace_says_who_is_there_when(read):
    trace = "node,start_s,end_s\nhome-1,0,12.5\nhome-1,20,\nguest,3,9\n"
    head = GOOD.partition("[[event]]")[0].replace("seed = 7", 'seed = 7\n[trace]\nfile = "who.csv"\nends = "leave"')
    scenario = read(head, who=trace)
    assert scenario.events == (
        Leave(host="home-1", at_s=12.5),
        Join(host="home-1", at_s=20.0),
        Join(host="guest", at_s=3.0),
        Leave(host="guest", at_s=9.0),
    )
    assert scenario.starting() == ("home-1", "home-2", "home-3")


def test_another_seed_draws_who_is_there_anew(read):
    drawn = GOOD.partition("[[event]]")[0].replace("seed = 7", 'seed = 7\n[trace]\ngenerator = "spot"')
    first, again, other = (read(drawn, seed=seed) for seed in (5, 5, 6))
    assert first.spec.seed == 5  # which is what the result notes
    assert first.events == again.events != other.events
    assert read(drawn.replace("seed = 7", "seed = 5")).events == first.events
    assert read(drawn).events == read(drawn, seed=7).events


def test_a_trace_with_a_seed_of_its_own_keeps_it(read):
    text = GOOD.partition("[[event]]")[0].replace("seed = 7", 'seed = 7\n[trace]\ngenerator = "spot"\nseed = 3')
    assert read(text, seed=5).events == read(text, seed=6).events


def test_a_host_has_the_speed_of_its_device_or_what_it_says_or_that_of_the_machine():
    assert speed_of(HostSpec(name="a")) is None
    assert speed_of(HostSpec(name="a", emulate="2x")).factor == 2.0
    # 40 % of 2 x 3,584 units x 1.777 GHz
    assert speed_of(HostSpec(name="a", device="rtx-3060")).s_per_gflop == pytest.approx(
        1 / (0.4 * 2 * 3584 * 1.777), rel=0.001
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("home-9,0,1", "did you mean 'home-"),
        ("home-1,5,5", "ends after it starts"),
        ("home-1,x,5", "expected the columns"),
    ],
)
def test_a_mistake_in_a_trace_names_its_line(read, line, words):
    text = GOOD.replace("seed = 7", 'seed = 7\n[trace]\nfile = "who.csv"')
    with pytest.raises(ConfigError, match=r"who\.csv, line 3") as caught:
        read(text, who=f"node,start_s,end_s\nhome-1,0,1\n{line}\n")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("80 Mbit/s", 1e7), ("1.5Gbit/s", 187.5e6), ("8 bit/s", 1.0), ("500 kbit/s", 62500.0), ("unlimited", None)],
)
def test_rates(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s
    assert parse_rate(show_rate(bytes_per_s)) == bytes_per_s


@pytest.mark.parametrize("text", ["80 mbit/s", "80", "80 MB/s", "-1 Mbit/s", "1e3 bit/s", "", "0 bit/s"])
def test_what_is_no_rate(text):
    with pytest.raises(ConfigError):
        parse_rate(text)
