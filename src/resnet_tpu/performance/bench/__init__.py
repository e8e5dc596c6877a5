"""Benchmarks against other programs, in alternating runs."""
