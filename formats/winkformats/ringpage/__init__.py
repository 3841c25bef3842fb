"""Ring Page buffer: `metadata` is the block at its start, `page` each of the pages behind it."""
