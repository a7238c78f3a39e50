"""What a checkpoint says about itself, and which of its files hold which blocks."""

import re
from collections.abc import Iterable

import msgspec

from brigade.wire.errors import CheckpointError
from brigade.wire.message_parts import FileSpec
from brigade.wire.plan import TiedParameter

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

_BLOCK_FILE = re.compile(r"^block-([0-9]{3,9})(\.optimizer|\.older-[1-9][0-9]{0,3})?\.safetensors$")
_PLAIN_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `manifest.json`: written last, so that a checkpoint without it is none."""

    format: int = FORMAT_VERSION
    run_id: str
    identity: str  # hash of what may not change in the run file (`run_identity`)
    steps_done: int
    attempt: int
    generation: int
    tokens_seen: int
    blocks: int
    files: tuple[FileSpec, ...]
    tied: tuple[TiedParameter, ...] = ()


def folder_name(steps_done: int) -> str:
    """Return the folder of the checkpoint after this many steps: `step-000040`."""
    return f"step-{steps_done:06d}"


def wire_name(steps_done: int, file_name: str) -> str:
    """Return the name under which a file of a checkpoint travels: `checkpoint/40/block-003.safetensors`."""
    return f"checkpoint/{steps_done}/{file_name}"


def parse_wire_name(name: str) -> tuple[int, str] | None:
    """Return (steps done, file name) of a name on the wire; None for anything else, such as a path that climbs."""
    match name.split("/"):
        case ["checkpoint", number, file_name] if number.isascii() and number.isdigit() and len(number) <= 12:
            return (int(number), file_name) if _PLAIN_NAME.match(file_name) else None
    return None


def block_of(file_name: str) -> int | None:
    """Return the block that this file belongs to; None for a file that every stage needs."""
    match = _BLOCK_FILE.fullmatch(file_name)
    block = int(match[1]) if match else None
    # Two names of one file would be two files: what is numbered in another way is no file of a block.
    return block if match and match[1] == f"{block:03d}" else None


def is_weights(file_name: str) -> bool:
    """Tell a block's newest parameters and buffers from older ones and from the state of its optimizer."""
    match = _BLOCK_FILE.match(file_name)
    return match is not None and match[2] is None


def files_of_blocks(manifest: Manifest, first_block: int, end_block: int) -> tuple[FileSpec, ...]:
    """Return the files that a stage with these blocks needs, under their names on the wire."""
    return tuple(
        FileSpec(name=wire_name(manifest.steps_done, file.name), size=file.size, sha256=file.sha256)
        for file in manifest.files
        if (block := block_of(file.name)) is None or first_block <= block < end_block
    )


def missing_blocks(files: Iterable[FileSpec], blocks: int) -> list[int]:
    """Return the blocks whose weights are in none of these files."""
    present = {block_of(file.name) for file in files if is_weights(file.name)}
    return [block for block in range(blocks) if block not in present]


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in these bytes.

    Raises CheckpointError, naming `where`, for bytes that are no manifest of this version.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:  # ValidationError is one
        raise CheckpointError(f"{where} is not a checkpoint manifest: {error}") from error
    if manifest.format != FORMAT_VERSION:
        raise CheckpointError(f"{where} has format {manifest.format}; this version reads format {FORMAT_VERSION}")
    for file in manifest.files:
        if not _PLAIN_NAME.match(file.name):
            raise CheckpointError(f"{where} names a file {file.name!r} outside its folder")
    if missing := missing_blocks(manifest.files, manifest.blocks):
        raise CheckpointError(f"{where} lacks the weights of block {missing[0]}")
    return manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
