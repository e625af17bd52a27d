"""Graph runners, under the module names that LMDeploy imports."""
