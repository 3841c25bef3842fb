"""winkfs in Spark: a source, a sink, streams, and the jobs of the pipeline."""
