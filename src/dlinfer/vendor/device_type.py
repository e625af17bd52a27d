"""The value of LMDeploy's `device_type` by which it comes to dlinfer most completely."""

DEVICE_TYPE = "ascend"
