"""Trained networks in use: exported for other programs, and behind a server."""
