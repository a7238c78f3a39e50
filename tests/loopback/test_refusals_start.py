"""What keeps a coordinator or a node from starting is told in one line, with what, where and what was expected."""

import re
import shutil
import signal
import socket
import subprocess

import pytest
from tests.loopback.programs import Programs

from brigade.wire.endpoint import Endpoint
from brigade.wire.identity import new_key_pair
from brigade.wire.invite import Invite

pytestmark = pytest.mark.slow


@pytest.fixture
def programs(tmp_path):
    with Programs(tmp_path) as programs:
        yield programs


def refused(program, *patterns, code=2):
    """The program ends with one line that matches all patterns."""
    assert program.expect_end() == code, program.screen
    (line,) = [line for line in program.screen.splitlines() if line]
    assert line.startswith("brigade: ")
    for pattern in patterns:
        assert re.search(pattern, line), line
    assert len(line) < 500
    return line


def a_node_invite():
    """An invite that is sound; nothing listens at its address."""
    address = Endpoint("127.0.0.1", 1).address
    return Invite(addresses=(address,), coordinator_key=new_key_pair().public, secret="5e" * 16, run_id="0").text()


# --- run files --------------------------------------------------------------------------------------------------------

TEXT = {"kind": "text", "path": "text.txt", "factory": None}
GPT = {"kind": "gpt", "factory": None, "arguments": None}


@pytest.mark.parametrize(
    ("changes", "patterns"),
    [
        ({"training": {"learnin_rate": 0.1}}, [r"training\.learnin_rate is not a known key", "'learning_rate'"]),
        ({"pipelin": {"nodes": 2}}, ["pipelin is not a known key", "'pipeline'"]),
        ({"training": {"max_steps": "many"}}, [r"training\.max_steps: expected `int`, got `str`", "'many'"]),
        ({"training": {"batch_size": 0}}, [r"training\.batch_size: expected .*>= 1", "found 0"]),
        ({"training": {"max_steps": None}}, [r"training\.max_steps is missing"]),
        ({"training": None}, ["training is missing"]),
        ({"model": {"kind": "gtp"}}, [r"model\.kind: expected one of", "'gtp'", "did you mean 'gpt'"]),
        ({"data": TEXT | {"path": "no-such.txt"}}, [r"data\.path", r"no-such\.txt"]),
        ({"data": TEXT, "model": GPT}, [r"data\.path: .*text\.txt has 9 bytes", "needs 129"]),
        ({"compression": {"forward": "int7"}}, [r"compression\.forward", "int7", "int8"]),
        ({"compression": {"backward": "int8:block=x"}}, [r"compression\.backward", "block"]),
        ({"model": {"factory": "gated.build"}}, [r"model\.factory", "gated.build", "package.module:function"]),
        ({"training": {"loss": "cross entropy"}}, [r"training\.loss", "cross_entropy, mse"]),
        ({"training": {"learning_rate": float("inf")}}, [r"training\.learning_rate is inf", "finite"]),
        ({"name": "a/b"}, ["name: expected up to 64 letters", "a/b"]),
    ],
    ids=lambda value: None if isinstance(value, list) else "-".join(value),
)
def test_a_mistake_in_the_run_file(programs, changes, patterns):
    (programs.home / "text.txt").write_text("too short.")
    run_file = programs.write_run(**changes)
    refused(programs.up(run_file), "bench.toml", *patterns)
    assert not programs.run_dir.exists(), "nothing is made for a run that cannot be"


def test_a_run_file_that_is_not_there_or_not_toml(programs):
    refused(programs.up(programs.home / "no-such.toml"), r"no run file .*no-such\.toml")
    path = programs.write_run()
    path.write_text(path.read_text() + "\n[training\n")
    refused(programs.up(path), "bench.toml is not TOML", r"line \d+")
    path.write_bytes(b"\xff\xfe\x00")
    refused(programs.up(path), "bench.toml", "UTF-8|utf-8")


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listen", "pattern"),
    [
        ("127.0.0.1:70000", "70000.*0 to 65535"),
        ("127.0.0.1", "port is missing"),
        ("http://127.0.0.1:80", "only tcp://"),
        ("::1:7700", r"\[::1\]:7700"),
        ("no-such-host.invalid:0", "no-such-host.invalid cannot be resolved"),
        ("192.0.2.1:0", "not an address of this machine"),
    ],
)
def test_an_address_that_cannot_be_listened_at(programs, listen, pattern):
    refused(programs.up(programs.write_run(), "--listen", listen), pattern)
    if "port is missing" in pattern:  # a node parses them alike; once is enough
        refused(programs.join("ada", "--listen", listen, invite=a_node_invite()), pattern)


def test_a_port_in_use(programs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        node = programs.join("ada", "--listen", listen, invite=a_node_invite())
        refused(programs.up(programs.write_run(), "--listen", listen), f"{listen}: port .* is in use")
        refused(node, f"{listen}: port .* is in use")
    programs.assert_clean()


# --- state directories ------------------------------------------------------------------------------------------------


def in_own_mounts(mount):
    """A prefix that runs a command in a mount namespace of its own, after `mount`; skip where that is not allowed."""
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare")
    prefix = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    return prefix


def test_a_state_directory_below_a_file(programs):
    (programs.home / "file").touch()
    below = programs.home / "file" / "state"
    node = programs.join("ada", "--state", below, invite=a_node_invite())
    refused(programs.up(programs.write_run(output_dir=str(below))), re.escape(str(below)), "[Nn]ot a directory")
    refused(node, re.escape(str(below)), "[Nn]ot a directory")


def test_a_state_directory_that_is_read_only(programs):
    place = programs.home / "readonly"
    place.mkdir()
    prefix = in_own_mounts(f"mount -t tmpfs -o ro,size=64k none '{place}'")
    node = programs.join("ada", "--state", place / "ada", invite=a_node_invite(), prefix=prefix)
    run_file = programs.write_run(output_dir=str(place / "run"))
    refused(programs.up(run_file, prefix=prefix), "readonly/run", "not writable", "[Rr]ead-only")
    refused(node, "readonly/ada", "not writable", "[Rr]ead-only")


@pytest.mark.parametrize("kilobytes", [4, 8, 24, 48], ids="{}k".format)
def test_a_full_disk_for_a_coordinator(programs, kilobytes):
    place = programs.home / "full"
    place.mkdir()
    prefix = in_own_mounts(f"mount -t tmpfs -o size={kilobytes}k none '{place}'")
    coordinator = programs.up(programs.write_run(output_dir=str(place / "run")), prefix=prefix)
    refused(coordinator, re.escape(str(place)), "[Nn]o space left|is full")


def test_a_full_disk_for_a_node(programs):
    place = programs.home / "full"
    place.mkdir()
    prefix = in_own_mounts(
        f"mount -t tmpfs -o size=4k none '{place}' && dd if=/dev/zero of='{place}/rest' 2>/dev/null;true"
    )
    node = programs.join("ada", "--state", place / "ada", invite=a_node_invite(), prefix=prefix)
    refused(node, re.escape(str(place)), "[Nn]o space left")


def test_a_directory_that_is_in_use_names_the_process(programs):
    run_file = programs.write_run()
    coordinator = programs.ready(run_file)
    refused(programs.up(run_file), re.escape(str(programs.run_dir)), f"in use by process {coordinator.process.pid}\\b")
    node = programs.join("ada")
    coordinator.expect("node ada joined")
    refused(programs.join("ada"), r"nodes/ada\b", f"in use by process {node.process.pid}\\b")
    assert node.process.poll() is None, "the first one is not disturbed"
    coordinator.process.send_signal(signal.SIGTERM)
    assert coordinator.expect_end() == 3
    assert node.expect_end() == 3
    programs.assert_clean()


# --- what lies in a run's directory -----------------------------------------------------------------------------------


def test_what_a_resume_may_change_and_what_not(programs):
    refused(programs.up(programs.write_run(), "--resume"), re.escape(str(programs.run_dir)), "no run to resume")
    alone = {"pipeline": {"nodes": 1, "stages": 1}, "training": {"max_steps": 2}}
    coordinator = programs.ready(programs.write_run(**alone))
    node = programs.join("ada")
    coordinator.expect("step 2/2")
    assert coordinator.expect_end() == 0, coordinator.screen
    assert node.expect_end() == 0, node.screen

    refused(programs.up(programs.write_run(**alone)), re.escape(str(programs.run_dir)), "--resume")
    for change, said in (
        ({"seed": 7}, "seed was 0, is 7"),
        ({"model": {"arguments": {"gate": "elsewhere"}}}, r"model\.arguments\.gate was .*, is 'elsewhere'"),
        ({"data": {"factory": "gated:other"}}, r"data\.factory was 'gated:data', is 'gated:other'"),
        ({"training": {"max_steps": 2, "batch_size": 5}}, r"training\.batch_size was 4, is 5"),
    ):
        refused(programs.up(programs.write_run(**alone | change), "--resume"), "bench.toml", said, "cannot change")

    coordinator = programs.ready(programs.write_run(training={"max_steps": 9}), "--resume")
    for said in ("max_steps was 2, is 9", "nodes was 1, is 2", "going on from the checkpoint of 2 steps"):
        assert said in coordinator.screen
    programs.assert_clean()


# --- what a node is started with --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "pattern"),
    [
        # a key may hold a brace, and an invite that is cut off behind one looks mistyped
        (lambda text: text[: len(text) // 2], "invite is (incomplete|mistyped)"),
        (lambda text: text[:-2], "invite is incomplete"),
        (lambda text: text[:40] + ("A" if text[40] != "A" else "B") + text[41:], "invite is mistyped"),
        (lambda text: text.replace("brigade1-", "brigade2-"), "version 2.*version 1"),
    ],
    ids=["half", "cut", "typo", "version"],
)
def test_an_invite_that_is_not_whole(programs, spoil, pattern):
    invite = a_node_invite()
    line = refused(programs.join("ada", invite=spoil(invite)), pattern)
    assert invite[20:40] not in line, "an invite is a secret"


@pytest.mark.parametrize(
    ("flags", "pattern"),
    [
        (("--advertise", "http://ada"), "http://ada"),
        (("--advertise", "ada:7700"), "ada:7700"),
        (("--device", "gpu"), "--device.*gpu.*expected auto, cpu"),
        (("--memory", "lots"), "--memory.*lots.*4GiB"),
        (("--name", "a/b"), "--name.*a/b"),
    ],
)
def test_options_that_cannot_be(programs, flags, pattern):
    refused(programs.join("ada", *flags, invite=a_node_invite()), pattern)
