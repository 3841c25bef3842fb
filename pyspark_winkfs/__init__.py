"""What makes Spark find the format "winkfs" by its name. Light to import: Spark imports every pyspark_* package."""
