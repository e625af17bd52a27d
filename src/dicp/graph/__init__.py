"""The typed graph: an FX graph of ATen operators, every node with a fake tensor."""
