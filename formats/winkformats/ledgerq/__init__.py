"""Files of a LedgerQ queue: segments of entries, their indexes, and the state beside them."""
