"""Which kernels compute the steps of a run: chosen, checked, timed and remembered."""
