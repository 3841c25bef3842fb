"""GoodOrder: a name order for a mount, where a damaged inode costs its own name and no other."""

from __future__ import annotations

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkfs.container.names.order import NameOrder, lower_bound
from winkfs.errors import DerivedDamage


class GoodOrder:
    """What a mount asks of a `NameOrder`. Raises DerivedDamage where that has to be made anew.

    order   the order itself
    """

    def __init__(self, order: NameOrder) -> None:
        self.order = order
        self.count, self.clashes, self.covered = order.count, order.clashes, order.covered

    def positions(self, start: int, stop: int) -> Int64:
        """See `NameOrder.positions`."""
        return self.order.positions(start, stop)

    def names(self, start: int, stop: int) -> list[bytes]:
        """The names with these indices, b"" for one that is damaged."""
        try:
            return self.order.names(start, stop)
        except DerivedDamage:
            raise
        except CorruptError:
            return [self._known(index) or b"" for index in range(start, min(stop, self.count))]

    def name(self, index: int) -> bytes:
        """The name with this index; for one that is damaged that of the nearest before it, so that
        names ascend. b"" where there is none."""
        while index >= 0:
            found = self._known(index)
            if found is not None:
                return found
            index -= 1
        return b""

    def _known(self, index: int) -> bytes | None:
        try:
            return self.order.name(index)
        except DerivedDamage:
            raise
        except CorruptError:
            return None

    def lower_bound(self, name: bytes, low: int = 0) -> int:
        """Index of the first name >= `name`, at or after `low`; `count` where there is none."""
        return lower_bound(self.name, self.count, name, low)
