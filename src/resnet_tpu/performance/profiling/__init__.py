"""Profiles training: shows where the time of its input and of its steps goes."""
