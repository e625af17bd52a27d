"""Ground under all packages of this repository: worker processes, files, settings, console, pages. Never imports torch."""
