"""What gives examples by number: TFRecords, image files, a table of Bigtable, or synthetic pixels."""
