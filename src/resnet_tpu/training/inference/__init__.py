"""Uses a trained network: loads it from its checkpoint, evaluates it, and predicts with it."""
