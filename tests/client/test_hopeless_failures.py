"""Failures that stay the same however often they are tried: raised at once, with what to do."""

import asyncio
import socket
import ssl
from typing import Any

import pytest
import trustme
from rollout_control_client import ServerUnreachableError


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


async def serve_tls(authority: trustme.CA, name: str, connections: list[object]) -> asyncio.Server:
    """Starts a server with a certificate for this name, which closes each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    return await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def test_a_certificate_that_does_not_verify(authority: trustme.CA, connect: Any) -> None:
    async with await serve_tls(authority, "127.0.0.1", []) as server:
        with pytest.raises(ServerUnreachableError, match=r"certificate cannot be verified.*SSL_CERT_FILE"):
            await connect(f"https://127.0.0.1:{port_of(server)}", 600).manifest("r")


async def test_a_certificate_of_another_name(
    authority: trustme.CA, connect: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with await serve_tls(authority, "elsewhere.test", []) as server:
        with pytest.raises(ServerUnreachableError, match="certificate cannot be verified"):
            await connect(f"https://127.0.0.1:{port_of(server)}", 600).manifest("r")


async def test_tls_is_spoken_to_a_plain_port(serve: Any, connect: Any, answer: Any) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer(400, b"plain HTTP here"))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        with pytest.raises(ServerUnreachableError, match="answers without TLS: base_url begins with http://"):
            await connect(f"https://127.0.0.1:{port_of(server)}", 600).manifest("r")


async def test_plain_http_is_spoken_to_a_port_with_tls(connect: Any) -> None:
    """Some servers answer with a TLS alert."""

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x15\x03\x01\x00\x02\x02\x46")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(alert, "127.0.0.1", 0) as server:
        with pytest.raises(
            ServerUnreachableError, match=r"not HTTP\. If the port speaks TLS, base_url begins with https://"
        ):
            await connect(f"http://127.0.0.1:{port_of(server)}", 600).manifest("r")


async def test_a_host_name_is_looked_up_twice(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def look_up(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    with pytest.raises(ServerUnreachableError, match="host name cannot be resolved: check it in base_url"):
        await connect("http://no-such-host.test", 600).manifest("r")

    assert len(asked) == 2
