"""The code of docs/trainer.md is run as it stands there."""

import contextlib
import http.server
import re
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from rollout_control_client import RolloutControlClient, RolloutManifest, RolloutTree, ServerUnreachableError
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


async def test_a_step_of_nemo_rl(caplog: pytest.LogCaptureFixture) -> None:
    """Complete rollouts come back as the chains of their leaves, the rest is logged, and all are retired."""
    ledger = MemoryLedger()
    commits = sample_conversation("whole", 4, branch_at=3)
    for commit in [*commits, *sample_conversation("failed", 3)]:
        await ledger.record(commit)
    await ledger.record_failure("failed", "lost-call", "worker_capture_failed")
    await ledger.retire(["gone"])
    recipe = names_of("async def read_step")
    ids = ["whole", "failed", "empty", "gone"]
    with controlled(ledger) as control:
        async with RolloutControlClient(control.base_url, TOKEN) as client:
            chains = await recipe["read_step"](client, ids)
            await recipe["end_step"](client, ids)
        assert control.get_manifest("whole").status_code == 410
    call_ids = [commit.record.model_call_id for commit in commits]
    assert chains.keys() == {"whole"}
    read = [[call.model_call_id for call in chain] for chain in chains["whole"]]
    assert read == [call_ids[:3], [*call_ids[:2], call_ids[3]]]
    assert sorted(caplog.messages) == [
        "left out: rollout 'empty': it has no calls",
        "left out: rollout 'failed': the capture of call 'lost-call' failed: worker_capture_failed",
        "left out: rollout 'gone' is retired",
    ]


async def test_the_tokens_of_a_rollout() -> None:
    ledger = MemoryLedger()
    commits = sample_conversation("r", 4, branch_at=3)
    for commit in commits:
        await ledger.record(commit)
    tree = RolloutTree(msgspec.json.decode(await ledger.manifest("r"), type=RolloutManifest))
    staged = {commit.record.staging_key: [number] * commit.record.delta_len for number, commit in enumerate(commits)}
    recipe = names_of("def sequences")
    found = recipe["sequences"](tree, lambda call: staged[call.staging_key])
    keys = [commit.record.staging_key for commit in commits]
    assert found == [[token for index in leaf for token in staged[keys[index]]] for leaf in ((0, 1, 2), (0, 1, 3))]
    with pytest.raises(ValueError, match="has staged 0 tokens"):
        recipe["sequences"](tree, lambda _: [])


def test_a_proxy(tmp_path: Path) -> None:
    """The proxy is asked for the server's whole URL, which it answers itself here."""
    asked: list[str] = []

    class Proxy(EmptyManifest):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    connect_through = names_of("def connect_through")["connect_through"]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            proxy_url = f"http://127.0.0.1:{proxy.server_port}"
            with connect_through(proxy_url, "http://control.test", TOKEN) as client:
                assert client.manifest("r").records == []
        finally:
            proxy.shutdown()
            thread.join()
    assert asked == ["http://control.test/training-token-capture/control/rollouts/r/manifest"]


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
    connect = names_of("def connect(")["connect"]
    with serving_to_certified_clients(authority) as base_url:
        with connect(base_url, TOKEN, f"{tmp_path}/ca.pem", certificate, certificate) as client:
            assert client.manifest("r").records == []
        with (
            connect(base_url, TOKEN, f"{tmp_path}/other-ca.pem", certificate, certificate) as client,
            pytest.raises(ServerUnreachableError, match="certificate cannot be verified"),
        ):
            client.manifest("r")
