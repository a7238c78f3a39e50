"""Who is in: every way in and out, with its reason."""

from brigade.wire.admission import Admission
from brigade.wire.invite import prove

OURS, ADA, BO, CY = ("c" * 40, "a" * 40, "b" * 40, "y" * 40)


def proof_of(key, secret="secret"):
    return prove(secret, OURS, key)


def admission(**lists):
    return Admission("secret", OURS, **lists)


def test_a_proof_admits_and_is_remembered():
    keys = admission()
    assert not keys.admits(ADA)
    verdict = keys.judge(ADA, proof_of(ADA))
    assert (verdict.admitted, verdict.code) == (True, "proved")
    assert keys.admits(ADA)
    assert keys.remembered == {ADA}
    assert keys.judge(ADA, "").code == "remembered"


def test_without_the_invite_nobody_gets_in():
    keys = admission()
    for proof in ("", proof_of(BO), proof_of(ADA, "other secret")):
        verdict = keys.judge(ADA, proof)
        assert (verdict.admitted, verdict.code) == (False, "bad_proof")
        assert "ask the owner" in verdict.reason
    assert not keys.admits(ADA)
    assert keys.remembered == frozenset()


def test_whoever_was_remembered_comes_back_with_an_old_secret():
    keys = Admission("new secret", OURS, remembered=[ADA])
    assert keys.judge(ADA, proof_of(ADA)).code == "remembered"
    assert keys.judge(BO, proof_of(BO)).code == "bad_proof"


def test_a_revoked_key_is_out_even_with_a_good_proof():
    keys = admission(remembered=[ADA, BO])
    assert keys.revoke(ADA)
    assert not keys.revoke(ADA)
    verdict = keys.judge(ADA, proof_of(ADA))
    assert (verdict.admitted, verdict.code) == (False, "revoked")
    assert not keys.admits(ADA)
    assert not keys.may_knock(ADA)
    assert keys.remembered == {BO}
    assert keys.revoked == {ADA}


def test_a_key_can_be_revoked_before_it_ever_came():
    keys = admission()
    assert keys.revoke(CY)
    assert keys.judge(CY, proof_of(CY)).code == "revoked"


def test_revoked_wins_over_remembered_when_both_are_stored():
    keys = admission(remembered=[ADA], revoked=[ADA])
    assert not keys.admits(ADA)
    assert keys.remembered == frozenset()


def test_the_owner_is_always_in_and_cannot_be_revoked():
    keys = admission()
    assert not keys.revoke(OURS)
    assert keys.judge(OURS, "").code == "owner"
    assert keys.admits(OURS)
    assert keys.may_knock(OURS)
    assert keys.remembered == frozenset()


def test_anybody_with_a_key_may_knock_but_only_knock():
    keys = admission()
    assert keys.may_knock(ADA)
    assert not keys.admits(ADA)
    for no_key in ("", "a" * 39, "a" * 40 + "\n"):
        assert not keys.may_knock(no_key)
        assert keys.judge(no_key, proof_of(no_key)).code == "bad_proof"


def test_lists_are_copies():
    keys = admission(remembered=[ADA])
    before = keys.remembered
    keys.judge(BO, proof_of(BO))
    assert before == {ADA}
