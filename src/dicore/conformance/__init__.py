"""The conformance kit: runs the cases of a suite in processes that may crash or hang, and reports what came of them.

A suite (`suite.Suite`) supplies sources of cases and one function that runs a case. The kit owns the rest: which cases are
wanted (`case_filter`), the worker processes (`runner`, `worker`), results (`results`), the console (`console`), the files
(`report_files`, `html_report`), what changed between two runs (`comparison`) and the options that all suites share
(`command_line`). It imports neither torch nor any package that it serves.
"""
