"""One folder a graph compiler; nothing outside a folder names it."""
