"""Jobs of the pipeline: each a function, a command of `winkfs pipeline`, and a program for spark-submit."""
