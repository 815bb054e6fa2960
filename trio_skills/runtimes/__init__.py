"""The kinds of sandboxes, one module each, and `open_runtime`, which turns a URL into one."""

from trio_skills.runtimes._urls import SCHEMES, open_runtime

__all__ = ["SCHEMES", "open_runtime"]
