"""Tests of the backends of torch.compile by the names that users know; what they check is `dicp.conformance`."""
