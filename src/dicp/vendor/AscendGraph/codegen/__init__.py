"""GE graphs in JSON, and the Python modules that run them."""
