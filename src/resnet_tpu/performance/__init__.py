"""How fast training and serving are, how fast they would be on other hardware, and where the time goes."""
