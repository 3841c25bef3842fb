"""Fixtures of the tests of the command line."""

from commands import base as base
from commands import run as run
