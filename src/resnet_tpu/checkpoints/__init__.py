"""Trained weights on disk: ours and those of the original, PyTorch and timm, and conversion between them."""
