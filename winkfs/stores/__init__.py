"""Kinds of store: `builtin`, and further ones, a folder each, whose module `kind` registers it."""
