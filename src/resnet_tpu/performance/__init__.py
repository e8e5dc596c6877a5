"""How fast it is, how fast it would be elsewhere, and where the time goes."""
