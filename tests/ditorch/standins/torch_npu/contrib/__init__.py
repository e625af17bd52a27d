"""Where the vendor keeps its own mapping."""
