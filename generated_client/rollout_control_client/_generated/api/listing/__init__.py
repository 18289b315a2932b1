# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Contains endpoint functions for accessing the API"""
