"""Fixtures of the tests of reports."""

from __future__ import annotations

from commands import run as run
from data_sets import root as root
