"""What makes Spark find the format "winkfs" by name. Light: Spark imports it at each look-up."""

from winkfs.spark.source import WinkfsDataSource as DefaultSource

__all__ = ["DefaultSource"]
