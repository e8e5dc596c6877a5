"""Benchmarks that compare with other programs, in alternating runs."""
