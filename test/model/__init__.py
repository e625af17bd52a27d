"""Models compiled whole: inference and training beside eager PyTorch."""
