"""The contract check: whether a running server, of any make, does what the rollout-control protocol requires.

`check_server` in `checking` runs it, and the command `rollout-control check` calls that. What is required is listed in
`requirements.yaml`. The modules whose names end in `_checks` hold the checks: a function for each requirement, named
after its id. All of it needs the extra `[check]`, so this module imports nothing.
"""
