"""PyTorch's operator database on a device, with the CPU as the reference."""
