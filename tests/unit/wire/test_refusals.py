"""One line for each address and kind in a while."""

from brigade.wire.refusals import UNKNOWN_HOST, RefusalFilter


def test_one_for_each_address_and_kind_in_a_minute():
    refusals = RefusalFilter(interval_s=60.0)
    assert refusals.is_news("10.0.0.1", "wrong_key", 0.0)
    assert not refusals.is_news("10.0.0.1", "wrong_key", 59.0)
    assert refusals.is_news("10.0.0.1", "plaintext", 59.0)
    assert refusals.is_news("10.0.0.2", "wrong_key", 59.0)
    assert refusals.is_news("10.0.0.1", "wrong_key", 60.0)
    assert refusals.suppressed == 1


def test_what_it_remembers_is_bounded():
    refusals = RefusalFilter(most=10)
    for n in range(1000):
        assert refusals.is_news(f"host-{n}", "stranger", float(n) / 1000)
    assert len(refusals._reported) == 10
    assert not refusals.is_news("host-999", "stranger", 1.0)


def test_an_address_is_known_for_a_while_whatever_it_did():
    refusals = RefusalFilter(interval_s=60.0)
    refusals.is_news("10.0.0.1", "wrong_key", 0.0)
    assert refusals.heard_lately("10.0.0.1", 59.0)
    assert not refusals.heard_lately("10.0.0.1", 61.0)
    assert not refusals.heard_lately("10.0.0.2", 1.0)
    assert refusals.heard_lately(None, 59.0)
    assert not refusals.heard_lately(None, 61.0)


def test_somebody_without_an_address_is_news_only_if_nobody_did_the_same():
    refusals = RefusalFilter(interval_s=60.0)
    refusals.is_news("10.0.0.1", "wrong_key", 0.0)
    assert not refusals.is_news(UNKNOWN_HOST, "wrong_key", 59.0)
    assert refusals.is_news(UNKNOWN_HOST, "plaintext", 59.0)
    assert refusals.is_news("10.0.0.2", "plaintext", 59.0)
    assert refusals.is_news(UNKNOWN_HOST, "wrong_key", 61.0)
