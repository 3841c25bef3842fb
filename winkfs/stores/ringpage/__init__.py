"""Ring Page buffer: a queue in one file, or on one block device, that writes each byte once."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.stores.ringpage.ring import Full, Ring, create

__all__ = ["Full", "Ring", "create"]
__getattr__ = exports(globals(), dict.fromkeys(__all__, "ring"))
