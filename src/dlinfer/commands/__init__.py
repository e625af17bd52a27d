"""The commands of the program `dlinfer`, one file each."""
