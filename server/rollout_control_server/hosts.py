"""Mounts an ASGI application in an application of Litestar, Starlette or FastAPI.

The frameworks are known by the names of their classes, so that a host's process imports only its own.
"""

import re
from typing import Any

from rollout_control_server.asgi import ASGIApp, Receive, Scope, Send

__all__ = ["mount"]


def mount(host: Any, prefix: str, example_path: str, application: ASGIApp) -> None:
    """Mounts the application at a prefix of the host's paths.

    Args:
        host: A Litestar, Starlette or FastAPI application.
        prefix: The path that the application's paths begin with.
        example_path: A path below the prefix, to ask the host whether it answers such paths already.
        application: What answers all paths below the prefix.

    Raises:
        TypeError: The host is of another kind.
        ValueError: The host has routes that would answer in the application's place.
    """
    frameworks = {(base.__module__.partition(".")[0], base.__name__) for base in type(host).__mro__}
    if ("litestar", "Litestar") in frameworks:
        _mount_in_litestar(host, prefix, application)
    elif ("starlette", "Starlette") in frameworks:
        _mount_in_starlette(host, prefix, example_path, application)
    else:
        raise TypeError(
            "control routes are installed in a Litestar, Starlette or FastAPI application, "
            f"not in {type(host).__name__}"
        )


def _mount_in_litestar(host: Any, prefix: str, application: ASGIApp) -> None:
    from litestar import asgi

    if any(route.path.startswith(prefix) for route in host.routes):
        raise _already_answered(prefix)

    async def rollout_control(scope: Scope, receive: Receive, send: Send) -> None:
        await application(scope, receive, send)

    host.register(asgi(prefix, is_mount=True, copy_scope=True)(rollout_control))


def _mount_in_starlette(host: Any, prefix: str, example_path: str, application: ASGIApp) -> None:
    # A router that FastAPI has included shows no path, but any route can be asked whether it matches a request.
    request = {"type": "http", "method": "GET", "path": example_path, "root_path": "", "headers": []}
    if any(route.matches(request)[0].value for route in host.routes):
        raise _already_answered(prefix)
    host.mount(prefix, application)
    # As Starlette compiles it, a mount lets a path with a line feed through to the host, without any authentication.
    route = host.routes[-1]
    route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)


def _already_answered(prefix: str) -> ValueError:
    return ValueError(
        f"this application already has routes that answer paths below {prefix}; install them once, "
        "and before a route that catches all paths"
    )
