"""LMDeploy imports this name in worker processes to have the device set up: importing the parent package has done it."""
