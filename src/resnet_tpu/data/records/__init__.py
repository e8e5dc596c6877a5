"""Files of records: TFRecords, the `tf.train.Example`s in them, and how both are read from a bucket."""
