"""All broken servers: each one line away from ours."""

import broken_ledgers
import broken_requests
from broken_server_layers import BROKEN_SERVERS, BrokenServer

__all__ = ["BROKEN_SERVERS", "LISTED_IN", "BrokenServer"]

LISTED_IN = (broken_requests, broken_ledgers)
