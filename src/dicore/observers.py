"""Whether a tool looks at operator calls now: code that calls kernels past torch's dispatcher goes through it then.

A dispatch mode and a profiler can be asked of torch; an observer below them cannot.
"""

from __future__ import annotations

ACTIVE: set[str] = set()
"""Who looks: names of packages. Empty: nobody."""
