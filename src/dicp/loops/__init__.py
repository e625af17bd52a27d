"""The loop IR: what an operator computes for each element, which of them share a loop, and in what order."""
