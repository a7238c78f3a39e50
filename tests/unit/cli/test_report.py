"""`brigade report` draws a page from what lies on disk, and says in one line what is wrong with it."""

import subprocess
import sys

from tests.unit.lab.made_up import made_up_result


def report(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "brigade.cli.app", "report", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_several_experiments_make_one_page(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_bytes(made_up_result(2, name=name).to_json())
    done = report("a", "b/result.json", "--output", "both.html", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "both.html: open it in a browser.\n", "")
    assert "<h1>a and b</h1>" in (tmp_path / "both.html").read_text(encoding="utf-8")


def test_what_is_no_experiment_is_refused_in_one_line(tmp_path):
    (tmp_path / "result.json").write_text('{"version": 0}')
    done = report(".", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "brigade: result.json: version 0 of results; this version of brigade reads 1\n"
    assert not (tmp_path / "report.html").exists()
