"""What LMDeploy expects of a process when `device_type` is ascend, whatever the device really is."""
