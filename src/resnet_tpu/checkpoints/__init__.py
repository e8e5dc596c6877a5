"""Trained weights on disk: ours, those of the original, of PyTorch and of timm, and the ways between them."""
