"""What is shown of a ledger's URL holds no password."""

import os
import subprocess
import sys

import pytest
from rollout_control_server.ledger import shown_ledger_url

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://u:{SECRET}@h:5432/db?sslmode=require", "postgresql://u:***@h:5432/db?sslmode=require"),
        (f"postgres://u:{SECRET}/@:?{SECRET}@h/db", "postgres://u:***@h/db"),
        (f"postgresql://:{SECRET}@h1:1,h2:2/db", "postgresql://:***@h1:1,h2:2/db"),
        (f"postgresql:///db?password={SECRET}&host=/run&sslpassword={SECRET}", None),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("sqlite:////data/a:b@c.sqlite", "sqlite:////data/a:b@c.sqlite"),
        ("memory://", "memory://"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str | None) -> None:
    assert SECRET not in shown_ledger_url(url)
    assert shown_ledger_url(url) == (shown or "postgresql:///db?password=***&host=/run&sslpassword=***")


def test_serve_does_not_show_it_when_it_fails() -> None:
    command = ["-m", "rollout_control_console", "serve", "--port", "0", "--ledger"]
    server = subprocess.run(
        [sys.executable, *command, f"postgresql://u:{SECRET}@127.0.0.1:1/db?operation_timeout_s=0.5"],
        capture_output=True,
        text=True,
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": "token"},
        timeout=60,
        check=False,
    )
    assert server.returncode == 1
    assert "Error: the ledger cannot answer now" in server.stderr
    assert SECRET not in server.stdout + server.stderr
