"""Prunes trained networks and retrains them."""
