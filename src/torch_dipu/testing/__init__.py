"""Test material that ships with the device, so that every vendor can prove its own chip with it."""
