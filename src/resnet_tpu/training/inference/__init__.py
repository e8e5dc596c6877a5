"""A trained network at work: loaded from its checkpoint, evaluated, predicting."""
