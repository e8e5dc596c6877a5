"""This machine, and how a program runs on it."""
