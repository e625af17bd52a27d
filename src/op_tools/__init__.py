"""Operator tools for any torch device: capture, compare, measure, fall back.

This room is for an accuracy engineer who sees a wrong loss on a chip and must name the operator that caused
it. It is not filled yet: the package exists so that its name, its place in the distribution and the
direction of its imports are settled, and it offers nothing but a version.
"""

__version__ = "0.1.0"
