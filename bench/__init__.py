"""The benchmark: `python -m bench core`. Ratios within one run, since machines are noisy."""
