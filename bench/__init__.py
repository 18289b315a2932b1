"""Comparisons with nemo-gym, and with what the machine allows; `nox -s bench`. RESULTS.md has the last run."""
