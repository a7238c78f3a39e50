"""How a node that the nursery bore ends: with its own exit code, once its threads and words are out, and at once."""

import subprocess
import sys

import pytest

BEAR = """
import sys
from brigade.lab.nursery import live
from brigade.lab.nursery_orders import Bear


class Reluctant:
    def __del__(self):
        print("taken apart", flush=True)


reluctant = Reluctant()
sys.path.insert(0, sys.argv[1])
live(Bear(number=0, module="program", arguments=("x",), output=""))
"""


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("print('done')", 0, "done\n"),
        ("import sys; print(sys.argv[1:]); sys.exit(3)", 3, "['x']\n"),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no')", 1, ""),
        ("raise ValueError('broken')", 1, ""),
        (
            (
                "import threading\nnext_ = threading.Event()\n"
                "threading.Thread(target=lambda: (next_.wait(), print('late'))).start()\nnext_.set()"
            ),
            0,
            "late\n",
        ),
    ],
)
def test_it_ends_as_any_program_but_is_not_taken_apart(tmp_path, program, code, said):
    (tmp_path / "program.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "-c", BEAR, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == said
    assert ("broken" in ended.stderr) == ("broken" in program)
    assert ("no\n" in ended.stderr) == ("'no'" in program)
