"""HTTP over bundles: requests, decoding, batches, answers."""
