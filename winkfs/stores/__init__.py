"""Kinds of store beside the container: a folder each, whose module `kind` registers it."""
