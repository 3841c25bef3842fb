"""Superblock: bytes worked out by hand, round trips, a line for each fault, and torn reads."""

import random
import struct

import oracle_format
import pytest
from drawn import examples
from flips import flipped
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from winkformats.disk.memory import MemoryStorage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.superblock import (
    HINDEX,
    KVSEQ,
    MAGIC,
    Superblock,
    read_superblock,
    text_value,
    value_text,
    write_first,
    write_second,
)

RESERVED = ("SBSIZE", "FORMAT", "PURPOSE", "FILESIZE", "SBCKSUM", "INCOMPAT")
names = st.text("ABCXYZ019_-. abc", min_size=1, max_size=8).map(str.strip)
variables = st.dictionaries(
    names.filter(lambda name: name and name not in RESERVED),
    st.integers(-(2**63), 2**63 - 1),
    max_size=20,
)


def pairs(*items: tuple[bytes, int]) -> bytes:
    return b"".join(name.ljust(8) + struct.pack(">q", value) for name, value in items)


def image(*items: tuple[bytes, int], size: int = 256) -> bytes:
    """A superblock made of bytes alone; the first three variables are right."""
    head = pairs((b"SBSIZE", size), (b"FORMAT", 0x10), (b"PURPOSE", 0))
    return (MAGIC + head + pairs(*items)).ljust(size, b"\0")


def decode(data: bytes) -> Superblock:
    return Superblock.decode(data, file="f")


# --- what stands where -------------------------------------------------------------------------


def test_bytes_worked_out_by_hand():
    block = Superblock.new(KVSEQ, "FSYSDATA", {"ALIGN": -2}, sbsize=128)
    assert block.encode().hex() == (
        "2321" "57494e4b4d45"  # #! WINKME
        "5342" "53495a452020" "0000000000000080"
        "464f" "524d41542020" "0000000000000010"
        "5055" "52504f534520" "4653595344415441"
        "4649" "4c4553495a45" "0000000000000080"
        "414c" "49474e202020" "fffffffffffffffe"
    ) + "00" * 40  # fmt: skip


def test_checksum_worked_out_by_hand():
    block = Superblock.new(HINDEX, "", {"SBCKSUM": 0, "LATER": 5}, sbsize=256)
    data = block.encode()
    zeroed = data[:80] + bytes(8) + data[88:]
    assert data[72:80] == b"SBCKSUM "
    assert data[80:88].hex() == f"{oracle_format.xxhash.xxh3_64_intdigest(zeroed):016x}"
    assert block["SBCKSUM"] == struct.unpack(">q", data[80:88])[0]
    assert block.encode() == data  # its own last value changes nothing


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("FSYSDATA", 0x4653595344415441), ("FSYSIDX", 0x4653595349445800), ("A", 0x41 << 56)],
)
def test_string_variables_are_padded_right_with_nul(text, value):
    assert text_value(text) == value
    assert value_text(value) == text


def test_string_variables_may_be_padded_with_spaces():
    assert value_text(int.from_bytes(b"FSYSIDX ", "big")) == "FSYSIDX"


@pytest.mark.parametrize("text", ["123456789", "ä"])
def test_string_variable_that_does_not_fit(text):
    with pytest.raises(ValueError):
        text_value(text)


def test_string_variable_of_any_bytes_is_readable():
    assert value_text(-1) == "�" * 8


# --- round trips -------------------------------------------------------------------------------


@given(variables, st.sampled_from((512, 520, 4096)), st.booleans())
def test_variables_keep_their_order_and_agree_with_the_oracle(more, size, summed):
    more = dict([("SBCKSUM", 0), *more.items()]) if summed else more
    block = Superblock.new(KVSEQ, "TEST", more, sbsize=size)
    data = block.encode()
    assert len(data) == size
    assert list(decode(data).items()) == list(block.items())
    found, _ = oracle_format.read_variables("f", data)
    assert list(found.items()) == list(block.items())


def test_unknown_variables_are_rewritten_unchanged():
    data = image((b"FILESIZE", 256), (b"WHAT IS", -5), (b"this~", 7))
    assert decode(data).encode() == data


@pytest.mark.parametrize(("size", "room"), [(64, 3), (80, 4), (512, 31), (4096, 255)])
def test_as_many_variables_as_fit_and_not_one_more(size, room):
    block = Superblock.new(KVSEQ, "", {}, sbsize=size)
    if room == 3:
        del block["FILESIZE"]
    block.update({f"V{i}": i for i in range(room - len(block))})
    assert len(decode(block.encode())) == room
    block["ONEMORE"] = 1
    with pytest.raises(ValueError, match="do not fit"):
        block.encode()


def test_31_variables_end_inside_the_first_sector():
    block = Superblock.new(KVSEQ, "", {f"V{i}": -1 for i in range(27)})
    assert len(block) == 31
    assert not any(block.encode()[504:])


@pytest.mark.parametrize(
    ("name", "value"),
    [("", 1), ("  ", 1), ("NINE CHAR", 1), ("Ä", 1), ("X", 2**63), ("X", -(2**63) - 1)],
)
def test_variables_that_cannot_be_written_are_refused(name, value):
    block = Superblock.new(KVSEQ, "", {name: value})
    with pytest.raises(ValueError):
        block.encode()


# --- faults ------------------------------------------------------------------------------------

GOOD = image((b"FILESIZE", 256))
FAULTS = [
    (b"", "empty"),
    (b"#!WINKMX" + GOOD[8:], "not a wink file"),
    (GOOD[:20], "not a wink file"),
    (GOOD[:8] + b"FORMAT  " + GOOD[16:], "SBSIZE is not a sane first variable"),
    (image(size=256)[:16] + struct.pack(">q", -1) + GOOD[24:], "SBSIZE is not a sane"),
    (image(size=256)[:16] + struct.pack(">q", 63) + GOOD[24:], "SBSIZE is not a sane"),
    (image(size=256)[:16] + struct.pack(">q", 1 << 62) + GOOD[24:], "SBSIZE is not a sane"),
    (GOOD[:-1], "cut short"),
    (GOOD.replace(b"FORMAT", b"FORMAX"), "first variables"),
    (GOOD.replace(b"PURPOSE", b"PURPOSF"), "first variables"),
    (image((b"X", 1), (b"Y", 2), (b"X", 1)), "X occurs twice"),
    (image((b"FILESIZE", 1), (b"SBSIZE", 256)), "SBSIZE occurs twice"),
    (image((b"X", 1), size=72), "no end"),  # ends with the last value
    (image((b"X", 1), (b"Y", 1), size=88), "no end"),
    (image((b"X", 1), (b"Y", 1), size=80), "no end"),  # ends inside a pair
    (image((b"\xff\xfe", 1)), "name"),
    (image((b"        ", 1)), "name"),
    (image((b"A\0B", 1)), "name"),
    (image((b"\x0b", 1)), "name"),
    (image((b"SBCKSUM", 1)), "checksum is wrong"),
]


@pytest.mark.parametrize(("data", "message"), FAULTS, ids=[message for _, message in FAULTS])
def test_a_bad_superblock_is_a_format_error_that_names_the_file(data, message):
    with pytest.raises(FormatError, match=message) as caught:
        decode(data)
    assert str(caught.value).startswith("f: ")
    with pytest.raises(FormatError, match=message):
        read_superblock(MemoryStorage(data, "f"))


def test_every_flipped_byte_is_found_by_the_checksum():
    data = Superblock.new(KVSEQ, "X", {"SBCKSUM": 0, "CONTID": 99}, sbsize=192).encode()
    for bit in range(8 * len(data)):
        bad = flipped(data, bit)
        if bad[72:80] == b"SBCKSUM ":  # else there is no checksum: the variable has no name
            with pytest.raises(FormatError):
                decode(bad)


def test_every_truncation_is_a_format_error():
    refuses(decode, (GOOD[:length] for length in range(len(GOOD))), FormatError)


@settings(max_examples=examples(100))
@given(st.binary(max_size=300), st.integers(0, 2**32))
def test_random_bytes_are_a_format_error_or_a_writable_block(noise, seed):
    rng = random.Random(seed)
    damaged = bytearray(image((b"FILESIZE", 256), (b"ALIGN", 8)))
    for _ in range(rng.randint(1, 4)):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    for data in (noise, MAGIC + noise, bytes(damaged)):
        try:
            block = decode(data)
        except FormatError:
            continue
        assert len(block.encode()) == block["SBSIZE"]


@pytest.mark.parametrize(
    ("bits", "name"), [(128, "128 .unknown"), (1 << 40, "unknown"), (-(2**63), "unknown")]
)
def test_an_extension_this_version_does_not_know_is_named(bits, name):
    block = Superblock.new(KVSEQ, "", {"INCOMPAT": bits | 127})
    with pytest.raises(FormatError, match=name):
        block.check_known("f")


def test_known_extensions_pass():
    Superblock.new(KVSEQ, "", {"INCOMPAT": 127}).check_known("f")
    Superblock.new(KVSEQ, "", {}).check_known("f")


# --- reading while somebody writes -------------------------------------------------------------


class Scripted(MemoryStorage):
    """Gives the next of several images at each read of a whole superblock, the last for ever."""

    def __init__(self, *images: bytes) -> None:
        super().__init__(images[-1])
        self.images = list(images)

    def read(self, offset: int, length: int) -> bytes:
        self.data = bytearray(self.images[0])
        if len(self.images) > 1:
            del self.images[0]
        return super().read(offset, length)


def versions(count: int) -> list[bytes]:
    return [
        Superblock.new(KVSEQ, "", {"SBCKSUM": 0, "ENTRIES": i, "OTHER": i}, sbsize=256).encode()
        for i in range(count)
    ]


def test_two_reads_must_agree():
    storage = Scripted(*versions(5))
    assert read_superblock(storage)["ENTRIES"] == 4
    assert len(storage.images) == 1


def test_a_torn_block_is_read_again_even_if_it_was_seen_twice():
    old, new = versions(2)
    cut = 8 + 16 * 5 + 8
    torn = new[:cut] + old[cut:]
    with pytest.raises(CorruptError):
        decode(torn)
    storage = Scripted(torn, torn, torn, new)
    assert read_superblock(storage)["OTHER"] == 1


def test_a_bad_block_stays_a_format_error_after_all_tries():
    old, new = versions(2)
    with pytest.raises(CorruptError, match="checksum"):
        read_superblock(MemoryStorage(new[:100] + old[100:]))


def test_reads_that_never_agree_end():
    storage = Scripted(*versions(60))
    assert read_superblock(storage, tries=10)["ENTRIES"] <= 12


@pytest.mark.parametrize("size", [64, 512, 4096, 4104, 1 << 20])
def test_any_size_is_read_whole(size):
    block = Superblock.new(KVSEQ, "", {}, sbsize=size)
    if size == 64:
        del block["FILESIZE"]
    storage = MemoryStorage(block.encode() + b"entries")
    assert read_superblock(storage) == block


# --- two superblocks ---------------------------------------------------------------------------


def two(first: int = 5, second: int = 5, **more: int) -> bytes:
    """The start of a file with two superblocks of these SBSEQ; FILESIZE tells them apart."""
    halves = []
    for sequence in (first, second):
        variables = {"SBCKSUM": 0, "SBSEQ": sequence, "CONTID": 7, **more}
        block = Superblock.new(KVSEQ, "TEST", variables, sbsize=8192)
        block["FILESIZE"] = 8192 + sequence
        halves.append(block.encode())
    return b"".join(halves)


@pytest.mark.parametrize(("first", "second", "counts"), [(5, 5, 5), (6, 5, 6), (5, 6, 6)])
def test_of_two_superblocks_the_higher_number_counts(first, second, counts):
    block = decode(two(first, second))
    assert (block["FILESIZE"], block.double) == (8192 + counts, True)
    assert (block.damage is not None) == (second > first)  # the first is always written first


@pytest.mark.slow
def test_any_flipped_bit_of_one_superblock_leaves_the_other():
    good = two(6, 5)
    for bit in random.Random(1).sample(range(4096 * 8), 2000) + list(range(600 * 8)):
        for half, counts in ((0, 5), (4096, 6)):
            block = decode(flipped(good, 8 * half + bit))
            assert (block["FILESIZE"], block["SBSEQ"]) == (8192 + counts, counts), bit
            assert isinstance(block.damage, FormatError), bit


@pytest.mark.parametrize("half", [0, 4096])
def test_superblock_torn_at_any_byte_leaves_the_other(half):
    old, new = two(5, 5), two(6, 6)
    for cut in range(1, 513):
        data = bytearray(old)
        data[half : half + cut] = new[half : half + cut]
        assert decode(bytes(data))["SBSEQ"] in (5, 6), cut


def test_two_damaged_superblocks_report_the_damage_of_the_first():
    with pytest.raises(CorruptError, match="at byte 80"):
        decode(flipped(two(), 8 * 100, 8 * (4096 + 200)))


def test_damage_of_the_second_superblock_names_its_own_place():
    assert "at byte 4176" in str(decode(flipped(two(6, 5), 8 * (4096 + 300))).damage)


@pytest.mark.parametrize("more", [{"SBSIZE": 4096}, {"SBSIZE": 16384}])
def test_two_superblocks_have_one_size(more):
    block = Superblock.new(KVSEQ, "TEST", {"SBCKSUM": 0, "SBSEQ": 1}, sbsize=8192)
    block.update(more)
    with pytest.raises(ValueError, match="8192"):
        block.encode()


def test_superblocks_are_written_one_after_the_other_and_healed():
    # In the zeros, which a sector of variables does not write.
    storage = MemoryStorage(flipped(two(5, 5), 8 * 3000))
    block = read_superblock(storage)
    write_first(storage, block)
    assert decode(bytes(storage.data)).damage is None
    assert (decode(bytes(storage.data))["SBSEQ"], storage.data[3000]) == (6, 0)
    write_second(storage, block)
    assert storage.data[:4096] == storage.data[4096:]


def test_content_is_not_taken_for_a_second_superblock():
    one = Superblock.new(KVSEQ, "TEST", {"SBCKSUM": 0}, sbsize=4096).encode()
    block = decode(one + two()[4096:])
    assert not block.double


def test_fewer_variables_clear_the_next_sector():
    """With 33 variables the last ones are in the second sector; without two of them the first would
    be all that is written, and the checksum of the zeros that should follow it wrong."""
    names = [f"V{i}" for i in range(27)]
    block = Superblock.new(
        KVSEQ, "TEST", {"SBCKSUM": 0, "SBSEQ": 1, **dict.fromkeys(names, -1)}, sbsize=8192
    )
    assert len(block) == 33
    storage = MemoryStorage(b"".join(block.images()))
    for gone in (names[-2:], names[-4:-2]):  # 31, then 29
        block = read_superblock(storage)
        for name in gone:
            del block[name]
        for write in (write_first, write_second) * 2:
            write(storage, block)
        assert read_superblock(storage) == block and block.damage is None
