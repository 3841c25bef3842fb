"""Samples: what loaders of other tools read, as files of a store, and the other way round."""
