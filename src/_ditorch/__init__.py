"""What `import ditorch` and the program `ditorch` are made of. Importing any module of this package changes nothing."""

__version__ = "0.1.0"
