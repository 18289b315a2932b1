# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.

"""A client of the API: the objects that it exchanges, and for each operation how to ask and how to read the answer."""

from .client import AuthenticatedClient

__all__ = ("AuthenticatedClient",)
