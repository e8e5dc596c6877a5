"""What a data set is: its photos, their splits, what was noticed about them, its manifest."""
