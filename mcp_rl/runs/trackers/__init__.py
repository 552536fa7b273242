"""Trackers: send a run's metrics to TensorBoard, Weights & Biases, or a plugin's tracker."""
