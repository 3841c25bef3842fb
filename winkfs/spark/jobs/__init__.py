"""Jobs of the pipeline: a function each, which is a command and a program for spark-submit too."""
