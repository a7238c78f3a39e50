"""Seeds for everything random in a run, as a pure function of the run's seed and of what the seed is for."""

from hashlib import blake2b


def derive(run_seed: int, *parts: int | str) -> int:
    """Return the seed, in [0, 2**63), for what `parts` name: `derive(seed, "dropout", step, microbatch, block)`.

    Different parts give independent seeds; 1 and "1" differ, and so do ("ab", "c") and ("a", "bc").
    """
    digest = blake2b(digest_size=8, person=b"brigade-seed")
    for part in (run_seed, *parts):
        data = part.encode() if isinstance(part, str) else b"%d" % part
        digest.update(b"%s%d:" % (b"s" if isinstance(part, str) else b"i", len(data)))
        digest.update(data)
    return int.from_bytes(digest.digest(), "big") >> 1
