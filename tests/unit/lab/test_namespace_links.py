"""What namespaces need, and what is written down about them: without root."""

import asyncio
import os

import pytest

from brigade.lab import namespace_links
from brigade.lab.fleet import Fleet
from brigade.lab.namespace_record import NAMES, new_record, ownerless
from brigade.lab.scenario_spec import HostSpec, LinkSpec
from brigade.wire.errors import ConfigError


async def open_any(errors):
    async with Fleet() as fleet:
        await namespace_links.open_namespaces(fleet, [HostSpec(name="ada")], LinkSpec(), (), 0, errors)


def test_without_root_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(namespace_links.os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError) as refusal:
        asyncio.run(open_any(tmp_path / "errors.txt"))
    assert str(refusal.value) == 'links = "namespaces" need root; links = "relay" do without'


def test_without_iproute2_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(namespace_links.os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        namespace_links.shutil, "which", lambda program: None if program == "tc" else "/sbin/" + program
    )
    with pytest.raises(ConfigError, match=r"iproute2 \(tc not found\)"):
        asyncio.run(open_any(tmp_path / "errors.txt"))


def test_a_record_has_a_name_of_its_own_and_is_nobody_elses_while_its_owner_lives(tmp_path):
    first, second = new_record(tmp_path), new_record(tmp_path)
    assert first.prefix != second.prefix
    assert str(os.getpid()) in first.prefix
    assert first.namespaces == []
    first.write(["one", "two"])
    assert not list(ownerless(tmp_path))
    first.release()
    (left,) = ownerless(tmp_path)
    assert left.namespaces == ["one", "two"]
    assert not list(ownerless(tmp_path)), "it is ours now"
    left.erase()
    assert not list(tmp_path.glob(f"*/{NAMES}"))
    second.erase()
    assert not list(tmp_path.iterdir())


def test_a_record_that_is_just_being_made_is_left_alone(tmp_path):
    record = new_record(tmp_path)
    record.release()
    assert not list(ownerless(tmp_path))


def test_a_record_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        new_record(tmp_path / "file" / "below")
