"""`python -m trio_skills` is `trio-skills`."""

from trio_skills.cli import main

if __name__ == "__main__":
    main()
