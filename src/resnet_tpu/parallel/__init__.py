"""Training on several devices, and in several processes."""
