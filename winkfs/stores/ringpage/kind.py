"""Registers the Ring Page buffer. Light: `winkfs.open` imports it."""

from winkfs.registry import Kind, register


def _detect(path: str) -> str | None:
    from winkfs.stores.ringpage.pages import is_buffer

    return path if is_buffer(path) else None


register(
    Kind(
        "ring buffer",
        _detect,
        {
            "open": "winkfs.stores.ringpage.records:RingRecords",
            "verify": "winkfs.stores.ringpage.records:verify",
        },
        folder=False,
    )
)
