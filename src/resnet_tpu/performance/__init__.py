"""Measures how fast training and serving are and where the time goes, and estimates other hardware."""
