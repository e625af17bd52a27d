"""Whether a backend is right: ATen operators, each compiled alone, static and dynamic, beside eager PyTorch."""
