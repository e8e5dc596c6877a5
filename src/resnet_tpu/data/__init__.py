"""A data set: its photos and their splits, the findings about them, and its manifest."""
