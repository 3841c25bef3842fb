"""HTALGO 1, 2, 3: published digests, the oracle, and many keys at once."""

import hashlib

import numpy as np
import oracle_format
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from winkformats import hashing
from winkformats.errors import FormatError

MASK63 = 2**63 - 1
FOX = b"The quick brown fox jumps over the lazy dog"

# The digests as their authors publish them: MD5 in RFC 1321 and of the fox; XXH3-64 of nothing with
# seed 0; MurmurHash3 x64 128, whose first half is read little-endian.
PUBLISHED = [
    (1, b"", 0xD41D8CD98F00B204, 0xE9800998ECF8427E),
    (1, b"abc", 0x900150983CD24FB0, 0xD6963F7D28E17F72),
    (1, FOX, 0x9E107D9D372BB682, 0x6BD81D3542A419D6),
    (2, b"", 0x2D06800538D394C2, 0x2D06800538D394C2),
    (3, b"", 0, 0),
    (3, FOX, 0xE34BBC7BBC071B6C, 0xE34BBC7BBC071B6C),
]


@pytest.mark.parametrize(("htalgo", "key", "s", "low"), PUBLISHED)
def test_published_digests(htalgo, key, s, low):
    assert hashing.hash_key(htalgo, key) == (s, low & MASK63)


@given(st.lists(st.binary(max_size=300), max_size=20), st.sampled_from((1, 2, 3)))
def test_many_keys_are_hashed_as_one_and_as_the_oracle_does(keys, htalgo):
    s, bits = hashing.hash_keys(htalgo, keys)
    assert (s.dtype, bits.dtype) == (np.uint64, np.uint64)
    single = [hashing.hash_key(htalgo, key) for key in keys]
    assert list(zip(s.tolist(), bits.tolist(), strict=True)) == single
    oracle = [oracle_format.hash_key("f", htalgo, key) for key in keys]
    assert [(b, a) for a, b in single] == oracle


@pytest.mark.parametrize("htalgo", [1, 2, 3])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_keys_may_be_any_buffer(htalgo, kind):
    key = kind(b"some/name/I0")
    expected = hashing.hash_key(htalgo, b"some/name/I0")
    assert hashing.hash_key(htalgo, key) == expected
    s, bits = hashing.hash_keys(htalgo, [key])
    assert (s[0], bits[0]) == expected


@pytest.mark.parametrize("htalgo", sorted(hashing.SLOT_FROM_S))
def test_where_the_slot_follows_from_s_it_does(htalgo):
    for key in (b"", b"a", FOX):
        s, bits = hashing.hash_key(htalgo, key)
        assert bits == s & MASK63
    assert hashing.hash_key(1, FOX)[1] != hashing.hash_key(1, FOX)[0] & MASK63


def test_md5_works_where_policy_forbids_it_for_security(monkeypatch):
    real = hashlib.md5

    def strict(data=b"", *, usedforsecurity=True):
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return real(data, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", strict)
    assert hashing.hash_key(1, b"abc")[0] == 0x900150983CD24FB0
    assert hashing.hash_keys(1, [b"abc"])[0][0] == 0x900150983CD24FB0


@pytest.mark.parametrize("htalgo", [-1, 0, 4, 2**62])
def test_unknown_algorithm_is_refused_and_named(htalgo):
    with pytest.raises(FormatError, match=f"f: HTALGO {htalgo} "):
        hashing.check(htalgo, "f")
    assert [hashing.check(known) for known in (1, 2, 3)] == [1, 2, 3]


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 2**64 - 1)), max_size=20))
def test_seeded_sums_of_many_buffers(items):
    buffers, seeds = [b for b, _ in items], [s for _, s in items]
    found = hashing.xxh3_many(buffers, np.array(seeds, np.uint64))
    assert found.tolist() == [xxhash.xxh3_64(b, seed=s).intdigest() for b, s in items]
