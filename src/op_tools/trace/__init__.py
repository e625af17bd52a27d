"""A run on a time line: the measured calls of every rank as a trace that opens in Perfetto."""

from op_tools.trace.writing import TraceSummary, write_trace

__all__ = ["TraceSummary", "write_trace"]
