"""How errors become answers: problem documents, for what we refuse, what Litestar refuses and what fails."""

import logging
from collections.abc import Callable
from typing import Any, Final

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from litestar.response.base import ASGIResponse

from rollout_control_server.errors import ProblemKind, RequestRefusedError, refusal_of

__all__ = ["EXCEPTION_HANDLERS", "problem_response", "told"]

logger = logging.getLogger("rollout_control_server")

MEDIA_TYPE: Final = "application/problem+json"


def told(error: Exception, what: str) -> RequestRefusedError:
    """Returns how the caller is told of a ledger's error, having logged what the caller is not told.

    Args:
        error: What the ledger raised.
        what: What it was asked to do, for the log.
    """
    refusal = refusal_of(error)
    if refusal.kind is ProblemKind.INTERNAL:
        logger.error("the ledger failed: %s", what, exc_info=error)
    elif refusal.kind is ProblemKind.UNAVAILABLE:
        logger.warning("the ledger cannot answer now: %s: %s", what, error)
    return refusal


def problem_response(refusal: RequestRefusedError) -> ASGIResponse:
    """Returns the answer to a request that is refused before it reaches a route."""
    return ASGIResponse(
        body=refusal.document(), status_code=refusal.kind.status, media_type=MEDIA_TYPE, headers=refusal.headers
    )


def _answer_refusal(_: Request[Any, Any, Any], refusal: RequestRefusedError) -> Response[bytes]:
    return Response(refusal.document(), status_code=refusal.kind.status, media_type=MEDIA_TYPE, headers=refusal.headers)


def _answer_http_exception(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Answers what Litestar refuses by itself: a path or a method that there is not."""
    if isinstance(error, NotFoundException):
        refusal = RequestRefusedError(ProblemKind.NOT_FOUND, "the control plane has no such path")
    elif isinstance(error, MethodNotAllowedException):
        # Litestar counts its own OPTIONS as allowed.
        methods = [method for method in ("GET", "HEAD", "POST") if method in (error.headers or {}).get("allow", "")]
        allow = ", ".join(methods)
        refusal = RequestRefusedError(ProblemKind.METHOD_NOT_ALLOWED, f"this path takes {allow}", {"Allow": allow})
    else:
        return _answer_unexpected(request, error)
    return _answer_refusal(request, refusal)


def _answer_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    logger.error("the control plane failed", exc_info=error)
    detail = "the control plane failed, and the server's log says how"
    return _answer_refusal(request, RequestRefusedError(ProblemKind.INTERNAL, detail))


EXCEPTION_HANDLERS: Final[dict[int | type[Exception], Callable[[Request[Any, Any, Any], Any], Response[Any]]]] = {
    RequestRefusedError: _answer_refusal,
    HTTPException: _answer_http_exception,
    Exception: _answer_unexpected,
}
"""For a Litestar application whose every error is a problem document."""
