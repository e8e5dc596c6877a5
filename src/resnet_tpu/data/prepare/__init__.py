"""Photos to a data set: TFRecords in the original's format, or a table of Bigtable."""
