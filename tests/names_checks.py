"""What the tests of name orders share: orders of a container, and a slow model of one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from winkfs.container.nameorder import NameOrder, open_order
from winkfs.container.store import Store


@contextmanager
def store_of(base: Path, writable: bool = False) -> Iterator[Store]:
    store = Store(str(base), writable=writable)
    try:
        yield store
    finally:
        store.abandon()


def _above(names: Iterable[bytes]) -> set[bytes]:
    return {name[:i] for name in names for i, byte in enumerate(name) if byte == 0x2F}


def clashes_of(names: Iterable[bytes]) -> int:
    """Names that another name begins with, followed by /."""
    found = set(names)
    return len(_above(found) & found)


def assert_order(store: Store, order: NameOrder, names: Iterable[bytes]) -> None:
    """An order holds these names, each at the inode that the index has for it."""
    wanted = sorted(names)
    assert order.names(0, order.count) == wanted
    places = [store.index.lookup(name + b"/I0") for name in wanted]
    assert order.positions(0, order.count).tolist() == places
    files = [name for name in wanted if not store.is_directory(name + b"/I0")]
    directories = set(wanted) - set(files)
    assert order.clashes == clashes_of(wanted) - len(directories & _above(wanted))


def check_order(base: Path, names: set[bytes]) -> None:
    """BASE.names covers all of the data file, and is right."""
    with store_of(base) as store:
        order = open_order(store)
        assert order is not None
        assert order.covered == store.kv.end
        assert_order(store, order, names)
        order.close()
