"""The contract check: whether a running server, of any make, does what the rollout-control protocol requires.

`check_server` in `checking` is the whole of it, and the command `rollout-control check` its command line. What is
required is listed in `requirements.yaml`; `access`, `bodies`, `answers` and `ledgers` hold the checks. All of it needs
the extra `[check]`, so this module imports nothing.
"""
