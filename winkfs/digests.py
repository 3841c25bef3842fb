"""Digest sets: what is known of each document without its content. See `winkfs.results.digests`."""

from winkfs.results.digests import MAX_SHARDS as MAX_SHARDS
from winkfs.results.digests import NAME as NAME
from winkfs.results.digests import Digest as Digest
from winkfs.results.digests import Digests as Digests
from winkfs.results.digests import open as open
from winkfs.results.digests import publish as publish
from winkfs.results.digests import shard_name as shard_name
from winkfs.results.digests import shard_of as shard_of
