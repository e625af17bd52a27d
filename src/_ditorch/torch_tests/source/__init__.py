"""PyTorch's own test files, case by case, on a device."""
