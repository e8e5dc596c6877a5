"""What a run measured: metrics, events for TensorBoard, curves and pictures."""
