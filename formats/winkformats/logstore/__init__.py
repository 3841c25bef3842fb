"""Files of a LogStore: `layout` numbers and settings, `entry` the log, `index` the saved table."""
