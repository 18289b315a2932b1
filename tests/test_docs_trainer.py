"""The code of docs/trainer.md is run as it stands there."""

import asyncio
import contextlib
import http.server
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from rollout_control_client import ServerUnreachableError
from rollout_control_server import MemoryLedger
from rollout_control_server.samples import sample_conversation
from served import TOKEN, controlled

DOCUMENT = (Path(__file__).parent.parent / "docs" / "trainer.md").read_text()


def names_of(definition: str) -> dict[str, Any]:
    """Runs the page's one block that has this definition, and returns its names."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, flags=re.DOTALL | re.MULTILINE)
    (program,) = (block for block in blocks if definition in block)
    names: dict[str, Any] = {}
    exec(compile(program, "trainer.md", "exec"), names)
    return names


def test_a_step_without_asyncio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = MemoryLedger()

    async def record() -> None:
        for rollout_id in ("whole", "failed"):
            for commit in sample_conversation(rollout_id, 3):
                await ledger.record(commit)
        await ledger.record_failure("failed", "lost-call", "worker_capture_failed")
        await ledger.retire(["gone"])

    asyncio.run(record())
    with controlled(ledger) as control:
        monkeypatch.setenv("ROLLOUT_CONTROL_URL", control.base_url)
        monkeypatch.setenv("ROLLOUT_CONTROL_AUTH_TOKEN", TOKEN)
        chains = names_of("def finish_step")["finish_step"](["whole", "failed", "empty", "gone"])
        keys = [commit.record.staging_key for commit in sample_conversation("whole", 3)]
        assert [chain for group in chains.values() for chain in group] == [keys]
        left_out = capsys.readouterr().out
        assert "failed is left out: the capture of call 'lost-call' failed: worker_capture_failed" in left_out
        assert "empty is left out: it has no calls" in left_out
        assert control.get_manifest("whole").status_code == 410


EMPTY = b'{"schema_version":2,"rollout_id":"r","records":[],"failures":[]}'


class EmptyManifest(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(EMPTY)))
        self.end_headers()
        self.wfile.write(EMPTY)

    def log_message(self, *_: Any) -> None:
        """Says nothing on standard error."""


@contextlib.contextmanager
def serving_to_certified_clients(authority: trustme.CA) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyManifest) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_private_authority_and_a_client_certificate(tmp_path: Path) -> None:
    authority, certificate = trustme.CA(), tmp_path / "client.pem"
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "other-ca.pem")
    authority.issue_cert("trainer@example.test").private_key_and_cert_chain_pem.write_to_path(certificate)
    connect = names_of("def connect")["connect"]
    with serving_to_certified_clients(authority) as base_url:
        with connect(base_url, TOKEN, f"{tmp_path}/ca.pem", certificate, certificate) as client:
            assert client.manifest("r").records == []
        with (
            connect(base_url, TOKEN, f"{tmp_path}/other-ca.pem", certificate, certificate) as client,
            pytest.raises(ServerUnreachableError, match="certificate cannot be verified"),
        ):
            client.manifest("r")
