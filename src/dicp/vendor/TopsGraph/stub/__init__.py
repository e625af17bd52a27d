"""The builder and the runtime as far as emitted programs use them, for machines without the vendor's SDK."""
