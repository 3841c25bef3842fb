"""Data sets: a folder of containers with numbered manifests, so that many can write one corpus."""
