"""How operators of ATen become operators of the builder, by families."""
