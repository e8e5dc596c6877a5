"""The DAWNBench job: a training whose every epoch is evaluated, and its `results.tsv`."""
