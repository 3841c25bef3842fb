"""Entry: every KEYREPR and VALREPR, bytes worked out by hand, the oracle's reading, and damage."""

import struct

import oracle_format
import pytest
import xxhash
from drawn import examples
from flips import flipped
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import each_raises, refuses

from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import Field, KVEntry, Layout

VARIABLE, FIXED, LIMITED = range(4), range(4, 260), range(260, 515)
CODES = (0, 1, 2, 3, 4, 5, 12, 258, 259, 260, 261, 299, 459, 513, 514)


def layout(keyrepr=1, valrepr=2, kvdelfl=1, align=0, kvcksum=1, contid=0) -> Layout:
    """The layout of these variables, by default that of new data files."""
    variables = {"KEYREPR": keyrepr, "VALREPR": valrepr, "KVDELFL": kvdelfl, "ALIGN": align}
    return Layout.of(variables | {"KVCKSUM": kvcksum, "CONTID": contid}, "f")


def lengths(code: int) -> list[int]:
    """The shortest and the longest strings worth trying under a representation."""
    if code in FIXED:
        return [code - 4]
    limit = code - 259 if code in LIMITED else (1 << (8 << code)) - 1
    return sorted({0, 1, min(limit, 70_000) - 1, min(limit, 70_000)})


def oracle_entry(data: bytes, pos: int, code: Layout) -> oracle_format.Entry:
    """What the documents say of the entry at `pos` of a file whose bytes are `data`."""
    variables = {"KEYREPR": code.key.code, "VALREPR": code.value.code, "CONTID": code.contid}
    variables |= {"KVDELFL": code.delflag, "KVCKSUM": int(code.checksum == 4)}
    return oracle_format.read_entry(oracle_format.Superblock("f", data, variables, ""), pos)


# --- one string --------------------------------------------------------------------------------


@pytest.mark.parametrize("codes", [VARIABLE, FIXED, LIMITED], ids=str)
def test_each_representation_holds_its_documented_range_only(codes):
    for code, length in [(each, length) for each in codes for length in lengths(each)]:
        field = Field.of(code)
        data = bytes(i % 251 + 1 for i in range(length))
        encoded = field.encode(data)
        assert len(encoded) == field.size(length), code
        assert field.prefix + length <= len(encoded), code
        if code in VARIABLE:
            assert encoded == length.to_bytes(1 << code, "big") + data, code
        elif code in FIXED:
            assert encoded == data, code
        else:
            assert encoded == bytes([length]) + data.ljust(code - 259, b"\0"), code


@pytest.mark.parametrize("codes", [(0, 1), FIXED, LIMITED], ids=str)
def test_a_string_that_does_not_fit_is_refused(codes):
    for code in codes:
        field = Field.of(code)
        wrong = [field.limit + 1] + ([field.limit - 1] if 4 < code < 260 else [])
        for length in wrong:
            with pytest.raises(ValueError, match=f"{length} .*do not fit"):
                field.encode(bytes(length))


@pytest.mark.parametrize("code", [-1, 515, 516, 2**40])
def test_representations_not_defined_are_refused_and_named(code):
    undefined = f"f: KEYREPR {code} is not defined"
    each_raises(
        (FormatError, undefined, lambda: Field.of(code, "KEYREPR", "f")),
        (FormatError, f"VALREPR {code} ", lambda: layout(valrepr=code)),
    )


def test_limits_of_length_prefixes():
    assert [Field.of(code).limit for code in VARIABLE] == [255, 65_535, 2**32 - 1, 2**63 - 1]


# --- whole entries -----------------------------------------------------------------------------


def test_entry_of_a_new_data_file_worked_out_by_hand():
    body = b"\0\x04" + b"a/I0" + b"\0\0\0\x03" + b"xyz"
    seed = (2**64 - 1 + 4096) % 2**64
    cksum = struct.pack(">Q", xxhash.xxh3_64_intdigest(body, seed=seed))[4:]
    code = layout(contid=-1)
    assert code.encode(4096, b"a/I0", b"xyz") == b"\0" + body + cksum
    assert code.encode(4096, b"a/I0", b"xyz", deleted=True) == b"\1" + body + cksum


def test_entry_of_the_founding_sample_worked_out_by_hand():
    code = layout(keyrepr=0, valrepr=3, kvcksum=0)
    assert code.encode(99, b"ab", b"c") == b"\0" + b"\2ab" + bytes(7) + b"\1c"


def test_a_delflag_needs_kvdelfl_1():
    assert layout(kvdelfl=0).delflag == layout(kvdelfl=2).delflag == 0


variants = st.builds(
    layout,
    keyrepr=st.sampled_from(CODES),
    valrepr=st.sampled_from(CODES),
    kvdelfl=st.just(1),
    align=st.sampled_from((0, 1, 7, 64)),
    kvcksum=st.sampled_from((0, 1)),
    contid=st.sampled_from((0, 5, -1, 2**63 - 1)),
)


@settings(deadline=None)
@given(variants, st.data())
def test_any_entry_comes_back_and_the_oracle_reads_the_same(code, data):
    key = bytes(data.draw(st.sampled_from(lengths(code.key.code)))).replace(b"\0", b"k")
    value = bytes(data.draw(st.sampled_from(lengths(code.value.code)))).replace(b"\0", b"v")
    deleted = data.draw(st.booleans())
    pos = code.aligned(data.draw(st.integers(0, 300)))
    encoded = code.encode(pos, key, value, deleted=deleted)
    assert len(encoded) == code.size(len(key), len(value)) >= code.minimum
    expected = KVEntry(pos, deleted, key, value, len(encoded))
    assert code.decode(encoded, 0, pos, "f") == expected
    assert code.decode(memoryview(b"<<" + encoded + b">>"), 2, pos, "f") == expected
    found = oracle_entry(bytes(pos) + encoded, pos, code)
    assert (found.delflag, found.key, found.value) == (deleted, key, value)
    assert found.end == pos + len(encoded)


@pytest.mark.parametrize(("align", "pos", "expected"), [
    (0, 13, 13), (1, 13, 13), (-8, 13, 13), (8, 13, 16), (8, 16, 16), (7, 15, 21), (4096, 1, 4096),
])  # fmt: skip
def test_entries_start_at_multiples_of_align(align, pos, expected):
    assert layout(align=align).aligned(pos) == expected


# --- damage ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("keyrepr", [0, 1, 2, 3, 9, 300])
@pytest.mark.parametrize("valrepr", [0, 1, 2, 3, 9, 300])
def test_every_flipped_bit_under_a_checksum_is_found(keyrepr, valrepr):
    code = layout(keyrepr, valrepr, contid=12)
    encoded = code.encode(5000, b"abcde", b"vwxyz")
    assert code.decode(flipped(encoded, 0), 0, 5000, "f").deleted  # the delflag itself may change
    for bit in range(1, 8 * len(encoded)):
        with pytest.raises(CorruptError) as caught:
            code.decode(flipped(encoded, bit), 0, 5000, "f")
        assert (caught.value.file, caught.value.offset) == ("f", 5000)


@pytest.mark.slow
@pytest.mark.parametrize("kvcksum", [0, 1])
@pytest.mark.parametrize("code", CODES)
def test_every_truncation_is_found(code, kvcksum):
    entry = layout(code, code, kvcksum=kvcksum)
    text = bytes(lengths(code)[0] or 3)[: entry.key.limit]
    encoded = entry.encode(0, text, text)
    cut = (encoded[:length] for length in range(len(encoded)))
    refuses(lambda data: entry.decode(data, 0, 0, "f"), cut, CorruptError, "reaches past the end")


@pytest.mark.parametrize(("pos", "contid"), [(5008, 12), (5000, 13), (0, 12)])
def test_an_entry_in_another_place_or_container_is_none(pos, contid):
    encoded = layout(contid=12).encode(5000, b"a/I0", b"value")
    with pytest.raises(CorruptError, match="checksum"):
        layout(contid=contid).decode(encoded, 0, pos, "f")


def test_a_delflag_of_two_is_damage():
    code = layout(kvcksum=0)
    with pytest.raises(CorruptError, match="delflag"):
        code.decode(b"\2" + code.encode(0, b"a", b"b")[1:], 0, 0, "f")


@pytest.mark.parametrize("field", ["keyrepr", "valrepr"])
def test_a_length_beyond_the_room_of_a_limited_string_is_damage(field):
    code = layout(**{"keyrepr": 5, "valrepr": 5, field: 269}, kvcksum=0)
    encoded = bytearray(code.encode(0, b"k", b"v"))
    at = 1 if field == "keyrepr" else 2
    assert encoded[at] == 1
    encoded[at] = 11
    with pytest.raises(CorruptError, match="length at byte 0: expected <= 10, found 11"):
        code.decode(encoded, 0, 0, "f")


@pytest.mark.parametrize("code", [2, 3])
def test_a_length_beyond_all_memory_is_damage_not_an_allocation(code):
    entry = layout(code, code, kvcksum=0)
    huge = b"\xff" * (1 << code)
    wrong = (b"\0" + huge + b"key", b"\0" + (1).to_bytes(1 << code, "big") + b"k" + huge)
    refuses(lambda data: entry.decode(data, 0, 0, "f"), wrong, CorruptError, "past the end")


@settings(max_examples=examples(150))
@given(variants, st.binary(max_size=700))
def test_random_bytes_are_damage_or_an_entry(code, noise):
    try:
        entry = code.decode(noise, 0, 0, "f")
    except CorruptError:
        return
    assert entry.size <= len(noise)
    assert len(entry.key) <= code.key.limit and len(entry.value) <= code.value.limit


# --- superblocks that make no entries ----------------------------------------------------------


@pytest.mark.parametrize("missing", ["KEYREPR", "VALREPR"])
def test_representations_must_be_there(missing):
    variables = {"KEYREPR": 1, "VALREPR": 2}
    del variables[missing]
    with pytest.raises(FormatError, match=f"f: a kvseq needs the variable {missing}"):
        Layout.of(variables, "f")


@pytest.mark.parametrize("kvcksum", [-1, 2])
def test_unknown_checksums_are_refused(kvcksum):
    with pytest.raises(FormatError, match=f"f: KVCKSUM {kvcksum} "):
        layout(kvcksum=kvcksum)


def test_empty_entries_are_refused_so_that_scans_end():
    with pytest.raises(FormatError, match="f: KEYREPR 4 and VALREPR 4 "):
        layout(4, 4, kvdelfl=0, kvcksum=0)
    assert layout(4, 4, kvcksum=0).minimum == 1


def test_alignment_beyond_all_memory_is_refused():
    with pytest.raises(FormatError, match="f: ALIGN"):
        layout(align=2**40)
    assert layout(align=1 << 20).align == 1 << 20
