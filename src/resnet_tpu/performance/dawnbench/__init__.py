"""The DAWNBench job: training with an evaluation of every epoch, and its `results.tsv`."""
