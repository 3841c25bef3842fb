"""Oracle, layer 2: compressed content. The bytes are read by hand, the frames by zstandard."""

from __future__ import annotations

from typing import Any

from oracle_format import Entry, Superblock, equal, expect, int64

try:
    import zstandard
except ImportError:  # only compressed content needs it
    zstandard: Any = None

FRAME = 1 << 62
MOST = 1 << 20


def dictionary_of(sb: Superblock, by_pos: dict[int, Entry]) -> tuple[int, bytes]:
    """ID and bytes of the dictionary, 0 and b"" where there is none."""
    at = sb.get("COMPRESS", 0)
    if not at:
        return 0, b""
    where = f"{sb.label} COMPRESS"
    equal("INCOMPAT", f"{where}, bit 32", 32, sb.get("INCOMPAT", 0) & 32)
    expect(at in by_pos, "COMPRESS", sb.label, "the position of an entry", at)
    entry = by_pos[at]
    equal("entry", where, (b"compress/Z0", 0), (entry.key, entry.delflag))
    value = entry.value
    expect(len(value) >= 40, "size", where, "40 bytes or more", len(value))
    codec, level, tried, number, size = (int64(value, 8 * i) for i in range(5))
    equal("codec", where, 1, codec)
    expect(0 <= level <= 22, "level", where, "0 to 22", level)
    expect(tried in (0, 1), "tried", where, "0 or 1", tried)
    equal("size", where, 40 + size, len(value))
    equal("dictid and dsize", where, number > 0, size > 0)
    if number:
        equal("dictid", where, number, zstandard.ZstdCompressionDict(value[40:]).dict_id())
    return number, value[40:]


def content_of(where: str, sb: Superblock, by_pos: dict[int, Entry], value: bytes) -> bytes:
    """What is in the frame that is a value."""
    equal("INCOMPAT", f"{where}, bit 32, frame", 32, sb.get("INCOMPAT", 0) & 32)
    equal("PAIROFF", f"{where}, frame", 1, sb.get("PAIROFF", 0))
    head = zstandard.get_frame_parameters(value)
    expect(head.content_size <= MOST, "frame", where, f"{MOST} bytes at most", head.content_size)
    number, words = dictionary_of(sb, by_pos)
    expect(head.dict_id in (0, number), "frame", where, f"dictionary {number}", head.dict_id)
    chosen = zstandard.ZstdCompressionDict(words) if head.dict_id else None
    found: bytes = zstandard.ZstdDecompressor(dict_data=chosen).decompress(value)
    equal("frame", where, head.content_size, len(found))
    return found
