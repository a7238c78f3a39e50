"""Seeds are a pure function of run and purpose."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from brigade.partition.seeds import derive

PARTS = st.lists(st.integers(-(2**70), 2**70) | st.text(st.characters(codec="utf-8"), max_size=6), max_size=4)


@given(st.integers(0, 2**64), PARTS)
def test_range_and_repeatability(run_seed, parts):
    seed = derive(run_seed, *parts)
    assert 0 <= seed < 2**63
    assert seed == derive(run_seed, *parts)


@given(PARTS, PARTS)
def test_different_parts_give_different_seeds(left, right):
    assert (derive(7, *left) == derive(7, *right)) == (left == right)


def test_parts_do_not_run_together():
    seeds = [
        derive(1, "ab", "c"),
        derive(1, "a", "bc"),
        derive(1, "abc"),
        derive(1, 1),
        derive(1, "1"),
        derive(11),
        derive(1),
    ]
    assert len(set(seeds)) == len(seeds)


def test_pinned_so_that_old_runs_resume():
    assert derive(0, "block", 3) == 3695390018984327964


def test_bits_are_balanced():
    seeds = [derive(0, "dropout", step, 0, 0) for step in range(4000)]
    for bit in range(63):
        assert 0.45 < sum(seed >> bit & 1 for seed in seeds) / len(seeds) < 0.55  # 6 sigma


def test_planning_imports_no_torch():
    code = "import brigade.partition.seeds, brigade.partition.tree, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
