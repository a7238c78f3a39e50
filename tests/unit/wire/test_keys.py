"""Keys and node ids."""

import pytest

from brigade.wire.errors import ConfigError
from brigade.wire.identity import new_key_pair
from brigade.wire.keys import KeyPair, is_key, is_node_id, node_id


def test_the_id_is_a_function_of_the_key():
    # Pinned: were the function to change, every node would come back as a stranger.
    assert node_id("a" * 40) == "vfn5vz5waktxzhwz"
    assert node_id("b" * 40) != node_id("a" * 40)
    assert is_node_id(node_id("a" * 40))


def test_ids_of_many_keys_differ():
    assert len({node_id(new_key_pair().public) for _ in range(50)}) == 50


@pytest.mark.parametrize("text", ["", "a" * 39, "a" * 41, "a" * 39 + "\n", "a" * 39 + "'", "é" * 40])
def test_what_is_no_key_has_no_id(text):
    assert not is_key(text)
    with pytest.raises(ConfigError) as caught:
        node_id(text)
    assert not text or text not in str(caught.value)


def test_real_keys_are_keys():
    pair = new_key_pair()
    assert is_key(pair.public)
    assert is_key(pair.secret)


def test_a_key_pair_does_not_show_its_secret():
    pair = KeyPair("p" * 40, "s" * 40)
    assert "s" * 40 not in repr(pair)
    assert "s" * 40 not in f"{pair}"
    assert "p" * 40 in repr(pair)
