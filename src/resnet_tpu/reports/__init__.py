"""Reports of runs and predictions: metrics, events for TensorBoard, tables, curves and pictures."""
