import pytest

from brigade.cli.join import read_invite
from brigade.wire.errors import ConfigError


def test_an_invite_is_taken_as_it_is():
    assert read_invite("brigade1-AAAA\n") == "brigade1-AAAA"


def test_a_file_may_hold_it(tmp_path):
    path = tmp_path / "invite.txt"
    path.write_text("brigade1-BBBB\n")
    assert read_invite(str(path)) == "brigade1-BBBB"


@pytest.mark.parametrize("text", ["", "no-such-file", "x" * 5000, "nul\0byte"])
def test_anything_else_says_what_was_expected(text):
    with pytest.raises(ConfigError, match="neither an invite"):
        read_invite(text)
