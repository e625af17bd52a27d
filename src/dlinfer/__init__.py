"""Fused operators for serving large language models, and adaptors for serving frameworks.

This room is for a chip vendor who wants LLM serving on the same interface. It is not filled yet: the
package exists so that its name, its place in the distribution and the direction of its imports are settled,
and it offers nothing but a version.
"""

__version__ = "0.1.0"
