"""From ATen's operators to GE's, by families."""
