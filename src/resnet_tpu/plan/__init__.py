"""What a training would be like on a TPU that is not here."""
