"""Names with equal hashes: every look-up must compare the names. Real twins of 64 bits are rare."""

from pathlib import Path

import container_checks
import pytest
import stored
from container_checks import contents
from hashes import hash_with

import winkfs

base = container_checks.base  # fixture

Model = dict[bytes, bytes]
FILES = 100


@pytest.fixture(autouse=True, params=[1, 3, 1 << 40])
def few_hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys share so many 64-bit hashes; HTALGO 3, since 2 also has ways of its own."""
    many = request.param

    hash_with(monkeypatch, lambda key: sum(key) % many)


@pytest.mark.slow
def test_twins_are_distinguished(base: Path) -> None:
    model: Model = {b"n%d" % i: b"%d" % i for i in range(FILES)}
    with winkfs.create(base, htalgo=3) as c:
        c.put_many((name, b"old") for name in [*model, *list(model)[: FILES // 4]])
        assert contents(c) == dict.fromkeys(model, b"old")
        c.sync()
        c.put_many(model.items())
        assert contents(c) == model
    for _ in range(2):
        with winkfs.open(base) as c:
            assert contents(c) == model
            assert f"n{FILES}" not in c and "" not in c
            with pytest.raises(FileNotFoundError):
                list(c.get_many(["n1", f"n{FILES}"]))
        assert winkfs.verify(base).problems == []
        with winkfs.open(base, "a") as c:
            for i in range(0, FILES, 7):
                c.delete(f"n{i}")
                c.put(f"m{i}", b"put")
            for i in range(1, FILES, 7):
                c.rename(f"n{i}", f"m{i}")
            for i in range(2, FILES, 7):
                c.append(f"n{i}", b"+")
            found = contents(c)
            assert len(found) == FILES
            for i in range(3, FILES, 7):
                assert found[b"n%d" % i] == model[b"n%d" % i]
        assert winkfs.reindex(base) == FILES
        with winkfs.open(base, "a") as c:
            assert contents(c) == found
            for name in list(found):
                if name.startswith(b"m"):
                    c.delete(name)
            c.put_many(model.items())
    assert winkfs.verify(base).problems == []


@pytest.mark.slow
def test_twins_in_a_tail_that_is_replayed(base: Path) -> None:
    stored.make(base, ((f"n{i}", b"%d" % i) for i in range(60)), htalgo=3)
    with winkfs.open(base, "a") as c, winkfs.open(base) as reader:
        c.put_many((f"n{i}", b"new") for i in range(0, 60, 3))
        c.rename("n1", "n60")
        c.delete("n2")
        c.sync()
        assert contents(reader) == contents(c)
        assert "n1" not in reader and "n2" not in reader
