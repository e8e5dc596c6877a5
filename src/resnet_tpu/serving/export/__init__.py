"""A trained network in forms that run elsewhere."""
