"""The container as a kind of store."""

from __future__ import annotations

from winkfs.registry import Kind, register


def detect(path: str) -> str | None:
    from winkformats.disk.paths import locate  # numpy comes with it
    from winkfs.names import DATA, base_of

    base = base_of(path)
    directory, name = locate(base + DATA)
    return base if directory.exists(name) else None


register(
    Kind(
        "container",
        detect,
        {
            "open": "winkfs.container.container:open",
            "info": "winkfs.container.verify:info",
            "verify": "winkfs.container.verify:verify",
            "reindex": "winkfs.container.container:reindex",
            "mount": "winkfs.mounting.appendonly:mount",
            "shards": "winkfs.dataset.snapshot:snapshot",
            "pack": "winkfs.archive.pack:pack",
        },
        folder=False,
        editable=True,
        writable=True,
    )
)
