"""What OpAutoCompare is made of: which calls, what is kept for backward, views, and the printed tables."""
