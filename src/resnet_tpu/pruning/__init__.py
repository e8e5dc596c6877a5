"""Prunes trained networks and re-trains them."""
