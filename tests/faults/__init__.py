"""The fault matrix: every kind of sandbox, times every fault, times every phase of an install.

`python -m tests.faults` prints it. `cells` says what there is, `shells`, `local` and `memory` how a
fault comes about in each kind of sandbox, and `check` what holds in every cell.
"""
