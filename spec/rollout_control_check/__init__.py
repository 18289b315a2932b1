"""The contract check: whether a running server, of any make, does what the rollout-control protocol requires.

`check_server` in `checking` runs it, and the command `rollout-control check` calls that. What is required is listed in
`requirements.yaml`. The modules whose names end in `_checks` hold the check of each requirement, a function that is named
after the requirement's id. All of it needs the extra `[check]`, so this module imports nothing.
"""
