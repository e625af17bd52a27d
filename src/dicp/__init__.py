"""`torch.compile` backends: from a captured graph over the operator table to vendor code.

This room is for a chip vendor who has eager operators and wants graphs compiled. It is not filled yet: the
package exists so that its name, its place in the distribution and the direction of its imports are settled,
and it offers nothing but a version.
"""

__version__ = "0.1.0"
