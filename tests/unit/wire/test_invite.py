"""Invites: what is copied comes back, what was copied badly says so, and a proof fits one node at one coordinator."""

import base64
import hashlib
import hmac
import itertools

import msgspec
import pytest

from brigade.wire.errors import ConfigError
from brigade.wire.invite import Invite, check_proof, prove

INVITE = Invite(
    addresses=("tcp://192.168.1.20:7700", "tcp://[2001:db8::5]:7700", "tcp://gpu-box:7700"),
    coordinator_key="k" * 40,
    secret="5ec2e7" * 5,
    run_id="run-1",
)
TEXT = INVITE.text()


def made_of(body):
    digest = hashlib.blake2b(body, digest_size=5).digest()
    return "brigade1-" + base64.urlsafe_b64encode(digest + body).rstrip(b"=").decode()


def test_there_and_back():
    assert TEXT.startswith("brigade1-")
    assert Invite.parse(TEXT) == INVITE


@pytest.mark.parametrize("size", range(1, 9))
def test_there_and_back_whatever_the_padding(size):
    invite = msgspec.structs.replace(INVITE, run_id="r" * size)
    assert Invite.parse(invite.text()) == invite
    assert "=" not in invite.text()


def test_pasting_does_no_harm():
    wrapped = "\n   ".join(TEXT[i : i + 40] for i in range(0, len(TEXT), 40))
    assert Invite.parse(f'  "{wrapped}"\r\n') == INVITE


def test_every_cut_is_noticed():
    for end in range(len("brigade1-"), len(TEXT)):
        with pytest.raises(ConfigError, match="copy it again"):
            Invite.parse(TEXT[:end])


def test_every_typo_is_noticed():
    for place in range(len("brigade1-"), len(TEXT) - 1):  # of the last character some bits carry nothing
        typo = TEXT[:place] + ("A" if TEXT[place] != "A" else "B") + TEXT[place + 1 :]
        with pytest.raises(ConfigError, match="mistyped"):
            Invite.parse(typo)


def test_swapped_characters_are_noticed():
    for place in range(len("brigade1-"), len(TEXT) - 2):
        if TEXT[place] != TEXT[place + 1]:
            swapped = TEXT[:place] + TEXT[place + 1] + TEXT[place] + TEXT[place + 2 :]
            with pytest.raises(ConfigError, match="mistyped"):
                Invite.parse(swapped)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an invite"),
        ("hello", "not an invite"),
        ("BRIGADE1-abc", "not an invite"),
        ("brigade2-" + TEXT[9:], "of version 2, this program reads version 1"),
        ("brigade1-", "incomplete"),
        ("brigade1-" + "!" * 10, "character that no invite has"),
        ("brigade1-" + "A" * 5000, "too long"),
        (made_of(b"{}"), "does not hold"),
        (made_of(b"{{}"), "does not hold"),
        (made_of(b'{"a":[],"k":"x","s":"x","r":"x"}'), "does not hold"),
        (made_of(b'{"a":["h:1"],"k":"short","s":"x","r":"x"}'), "no coordinator key"),
        (made_of(b'{"a":["h:0"],"k":"' + b"k" * 40 + b'","s":"x","r":"x"}'), "port 0"),
    ],
)
def test_what_is_no_invite_says_why(text, words):
    with pytest.raises(ConfigError, match=words):
        Invite.parse(text)


def test_no_word_of_the_secret_in_representations_and_errors():
    assert INVITE.secret not in repr(INVITE)
    assert INVITE.secret not in f"{INVITE}"
    broken = made_of(msgspec.json.encode({"a": 1, "k": "k" * 40, "s": INVITE.secret, "r": "x"}))
    with pytest.raises(ConfigError) as caught:
        Invite.parse(broken)
    assert INVITE.secret not in str(caught.value)


def test_a_proof_is_the_documented_hmac():
    message = b"brigade join 1\0" + (40).to_bytes(4, "big") + b"c" * 40 + (40).to_bytes(4, "big") + b"n" * 40
    assert prove("secret", "c" * 40, "n" * 40) == hmac.digest(b"secret", message, "sha256").hex()


def test_a_proof_fits_one_secret_one_coordinator_one_node():
    proof = prove("secret", "c" * 40, "n" * 40)
    for words in itertools.product(("secret", "other"), ("c" * 40, "n" * 40), ("n" * 40, "c" * 40)):
        assert check_proof(proof, *words) == (words == ("secret", "c" * 40, "n" * 40))


@pytest.mark.parametrize("proof", ["", "0" * 64, "ü", "\ud800", prove("secret", "c" * 40, "n" * 40).upper()])
def test_other_proofs_are_wrong(proof):
    assert not check_proof(proof, "secret", "c" * 40, "n" * 40)


def test_characters_do_not_move_between_the_keys():
    assert prove("s", "ab", "c") != prove("s", "a", "bc")
