"""Sources of examples by number: TFRecords, image files, a Bigtable table, or synthetic pixels."""
