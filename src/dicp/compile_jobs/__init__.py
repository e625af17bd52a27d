"""Running a chip's compiler once for each program, and keeping what it made."""

from dicp.compile_jobs.job import CompileJob, JobResult, compile_library

__all__ = ["CompileJob", "JobResult", "compile_library"]
