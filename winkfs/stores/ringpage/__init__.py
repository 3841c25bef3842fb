"""Ring Page buffer: a queue in one file, or on one block device, that writes each byte once."""

from typing import TYPE_CHECKING

from winkfs import exports

if TYPE_CHECKING:
    from winkfs.stores.ringpage.ring import Full as Full
    from winkfs.stores.ringpage.ring import Ring as Ring
    from winkfs.stores.ringpage.ring import create as create

__getattr__ = exports(globals(), {"Full": "ring", "Ring": "ring", "create": "ring"})
