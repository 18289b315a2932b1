"""How errors become answers: which problem document an error is, and what of it goes into the log instead."""

import errno
import logging
from typing import Final

from rollout_control_server.asgi import Answer
from rollout_control_server.errors import LedgerUnavailableError, ProblemKind, RequestRefusedError
from rollout_control_server.request_ids import current_request

__all__ = ["is_retired", "problem_answer", "problem_for", "unexpected_problem"]

logger = logging.getLogger("rollout_control_server")

_MEDIA_TYPE: Final = "application/problem+json"


def problem_for(error: Exception, attempted: str) -> RequestRefusedError:
    """Translates a ledger's error into a problem document, and logs the details that the document leaves out.

    Rollout ids are validated before any ledger is asked, so a ValueError of a ledger is the ledger's fault and no 400.

    Args:
        error: What a ledger, of ours or of another make, raised.
        attempted: What the ledger was asked to do, for the log.
    """
    if is_retired(error):
        return RequestRefusedError(ProblemKind.ROLLOUT_RETIRED, "the rollout is retired and its manifest is gone")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return RequestRefusedError(
            ProblemKind.INVALID_ROLLOUT_ID, "the rollout id is longer than this server's ledger can store"
        )
    if isinstance(error, LedgerUnavailableError | OSError):
        logger.warning("the ledger cannot answer now: %s: %s (%s)", attempted, error, current_request())
        retry_after_s = error.retry_after_s if isinstance(error, LedgerUnavailableError) else 1
        return RequestRefusedError(
            ProblemKind.UNAVAILABLE,
            "the ledger's storage cannot answer now, and nothing was half done; try again",
            {"Retry-After": str(retry_after_s)},
        )
    if isinstance(error, NotImplementedError):
        return RequestRefusedError(ProblemKind.NOT_IMPLEMENTED, "this server's ledger has no such operation")
    logger.error("the ledger failed: %s (%s)", attempted, current_request(), exc_info=error)
    return RequestRefusedError(ProblemKind.INTERNAL, "the ledger failed, and the server's log says how")


def is_retired(error: Exception) -> bool:
    """Tells whether a ledger's error says that the rollout is retired.

    The class is known by its name, because Gym has one of its own. Any other LookupError is damage.
    """
    return any(base.__name__ == "RolloutRetiredError" for base in type(error).__mro__)


def unexpected_problem(error: Exception) -> RequestRefusedError:
    """Logs an error that no part of the control plane expects, and returns the problem document that hides it."""
    logger.error("the control plane failed (%s)", current_request(), exc_info=error)
    return RequestRefusedError(ProblemKind.INTERNAL, "the control plane failed, and the server's log says how")


def problem_answer(refusal: RequestRefusedError) -> Answer:
    """Returns the answer to a request that is not carried out."""
    return Answer(refusal.kind.status, refusal.document(), _MEDIA_TYPE, refusal.headers)
