"""What makes Spark find the format "winkfs" by name. Light: Spark imports it at each look-up."""
