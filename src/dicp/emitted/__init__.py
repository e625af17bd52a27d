"""Backends whose compiler is a vendor's: what they emit is checked here, and runs where the vendor's SDK is."""
