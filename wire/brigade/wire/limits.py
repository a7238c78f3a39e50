"""How much another party may ask of us: the bounds that every decoder keeps, in one place.

PROTOCOL.md repeats the table; `tests/repo/test_protocol_table.py` holds the two together.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one message; whoever breaks one loses the session."""

    max_header_bytes: int = MIB
    max_containers: int = 32_768  # lists and maps in one header
    max_nesting: int = 64  # levels of lists and maps in one header
    max_frames: int = 4096  # of one message
    max_frame_bytes: int = 4 * GIB
    max_message_bytes: int = 4 * GIB  # header and frames together
    max_file_part_bytes: int = 4 * MIB  # the frame of a FilePart
    max_tensors: int = 1024  # of one value
    max_dims: int = 16
    max_dim: int = 2**40  # size of one dimension
    max_tensor_bytes: int = 4 * GIB  # of one tensor, decoded
    max_samples: int = 65_536  # sample ids in one message
    max_reason_characters: int = 2500  # of an error or a reason that a node gives
    max_label_characters: int = 500  # of a few words that a node says about itself

    def decoding_bytes(self, header_bytes: int) -> int:
        """Return the most memory, in bytes, that decoding a header of this size allocates at any moment.

        32 bytes a header byte (a two-character text takes 3 bytes on the wire and 60 in memory) plus 256 for each
        list or map, of which there are at most `max_containers`, plus a constant.
        """
        within = min(header_bytes, self.max_header_bytes)
        return 32 * within + 256 * min(within, self.max_containers) + 64 * KIB


DEFAULT_LIMITS = Limits()
