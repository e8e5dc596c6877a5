"""From photos to a data set: TFRecords in the original's format, or a Bigtable table."""
