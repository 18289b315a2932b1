# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""Contains methods for accessing the API"""
