"""Puts trained networks to use: exports them for other programs, and serves them."""
