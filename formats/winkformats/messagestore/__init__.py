"""Segment files of the classic queue message store: `rdq` is version 1, `sqs` version 2."""
