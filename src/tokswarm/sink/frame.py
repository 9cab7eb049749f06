"""The form of a record log: what it holds and how each entry is framed.

log   = b"TSWL" frame(LogHeader) frame(Entry)*
frame = [payload length u32][CRC-32 of the payload u32][payload, msgpack], little endian
"""

import re
import struct
import zlib

import msgspec

from tokswarm.measure.record import RequestRecord
from tokswarm.measure.server_second import ServerSecond
from tokswarm.measure.window import Event, FleetSecond, Window, WorkerSecond

Entry = RequestRecord | Window | WorkerSecond | FleetSecond | ServerSecond | Event
"""What a log holds after its header."""

SCHEMA = 1
"""Goes up when an older reader would misread a log."""

MAGIC = b"TSWL"
FRAME = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 26
"""No entry is longer: a length beyond it is damage, and is not believed."""

# An entry begins with its array head and its two-letter tag, eight bytes after the start of its frame.
PAYLOAD_START = re.compile(rb"(?:[\x90-\x9f]|\xdc..)\xa2[rwhfse][0-9]", re.DOTALL)


class LogHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose log it is."""

    schema: int
    run_id: str
    worker: str


def framed(payload: bytes) -> bytes:
    """A payload behind its length and checksum."""
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload
