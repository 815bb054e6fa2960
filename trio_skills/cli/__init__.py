"""The command line. It holds no logic: it parses, and it formats what the library returns."""

from trio_skills.cli._app import main as main
