"""Key files: made once for the owner only, and refused with the reason when they are not what they should be."""

import os
import stat
import threading

import pytest

from brigade.wire.errors import ConfigError
from brigade.wire.identity import KeyPair, load_or_create, load_or_create_secret, new_key_pair

AS_ROOT = os.geteuid() == 0


def write(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def key_file(path, public, secret, mode=0o600):
    return write(path, f"public {public}\nsecret {secret}\n", mode)


def refusal(path, load=load_or_create):
    with pytest.raises(ConfigError) as caught:
        load(path)
    said = str(caught.value)
    assert str(path) in said
    assert "\n" not in said
    return said


def test_made_once_and_then_the_same(tmp_path):
    path = tmp_path / "node.key"
    pair = load_or_create(path)
    assert load_or_create(path) == pair
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.key"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_only_the_owner_reads_it_whatever_the_umask(tmp_path, umask):
    old = os.umask(umask)
    try:
        load_or_create(tmp_path / "node.key")
        load_or_create_secret(tmp_path / "invite.secret")
    finally:
        os.umask(old)
    for name in ("node.key", "invite.secret"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_everybody_who_starts_at_once_gets_the_same_key(tmp_path):
    found = []
    barrier = threading.Barrier(8)

    def start():
        barrier.wait()
        found.append(load_or_create(tmp_path / "node.key"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [load_or_create(tmp_path / "node.key")] * 8
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.key"]


def test_a_kill_while_it_is_made_leaves_nothing_torn(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(_):
        raise Killed

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(Killed):
        load_or_create(tmp_path / "node.key")
    monkeypatch.undo()
    assert not (tmp_path / "node.key").exists()
    assert load_or_create(tmp_path / "node.key")


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def unsupported(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    pair = load_or_create(tmp_path / "node.key")
    assert load_or_create(tmp_path / "node.key") == pair
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.key"]


def test_line_ends_blank_lines_and_comments_do_no_harm(tmp_path):
    pair = new_key_pair()
    text = f"# mine\r\n\r\npublic {pair.public}\r\nsecret {pair.secret}  \r\n\r\n\r\n"
    assert load_or_create(write(tmp_path / "node.key", text)) == pair


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_open(tmp_path, mode):
    pair = new_key_pair()
    said = refusal(key_file(tmp_path / "node.key", pair.public, pair.secret, mode))
    assert f"{mode:04o}" in said
    assert "chmod 600" in said


def test_damaged_files(tmp_path):
    one, other = new_key_pair(), new_key_pair()
    path = tmp_path / "node.key"
    assert "swapped" in refusal(key_file(path, one.secret, one.public))
    assert "does not belong" in refusal(key_file(path, one.public, other.secret))
    assert "secret key has 39 characters, expected 40" in refusal(key_file(path, one.public, one.secret[:-1]))
    assert "public key has 41 characters" in refusal(key_file(path, one.public + "a", one.secret))
    assert "character that no key has" in refusal(key_file(path, one.public[:-1] + "'", one.secret))
    assert "secret key is missing" in refusal(write(path, f"public {one.public}\n"))
    assert "public key is missing" in refusal(write(path, ""))
    assert "neither" in refusal(write(path, f"{one.public}\n{one.secret}\n"))
    assert "neither" in refusal(write(path, f"public {one.public}\npublic {one.public}\nsecret {one.secret}\n"))
    assert "does not belong" in refusal(key_file(path, one.public, "#" * 40))  # beyond 32 bits a group
    assert "longer" in refusal(write(path, "x" * 5000))
    path.write_bytes(b"\xff\xfe")
    assert "not text" in refusal(path)


def test_no_refusal_shows_a_secret(tmp_path):
    pair = new_key_pair()
    for public, secret in ((pair.secret, pair.public), (pair.public, pair.secret[:-1]), ("a" * 40, pair.secret)):
        said = refusal(key_file(tmp_path / "node.key", public, secret))
        assert pair.secret[:8] not in said


def test_places_that_cannot_hold_a_file(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere" / "node.key")
    (tmp_path / "folder").mkdir(mode=0o700)
    assert "not a file" in refusal(tmp_path / "folder") or "Is a directory" in refusal(tmp_path / "folder")
    write(tmp_path / "plain", "")
    assert "Not a directory" in refusal(tmp_path / "plain" / "node.key")


@pytest.mark.skipif(AS_ROOT, reason="root may write everywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        assert "Permission denied" in refusal(tmp_path / "node.key")
    finally:
        tmp_path.chmod(0o700)


def test_a_full_disk_leaves_no_draft(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in refusal(tmp_path / "node.key")
    assert not list(tmp_path.iterdir())


def test_join_secret(tmp_path):
    path = tmp_path / "invite.secret"
    secret = load_or_create_secret(path)
    assert len(secret) == 32
    assert load_or_create_secret(path) == secret
    assert load_or_create_secret(tmp_path / "other.secret") != secret
    assert "does not hold a join secret" in refusal(write(path, "hello\n"), load_or_create_secret)
    assert "chmod" in refusal(write(path, secret, 0o644), load_or_create_secret)
    assert "does not exist" in refusal(tmp_path / "nowhere" / "invite.secret", load_or_create_secret)


def test_pairs_are_fresh():
    assert isinstance(new_key_pair(), KeyPair)
    assert new_key_pair() != new_key_pair()
