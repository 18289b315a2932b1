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


def test_serve_does_not_show_it() -> None:
    command = ["-m", "rollout_control_server", "serve", "--port", "0", "--ledger"]
    server = subprocess.Popen(
        [sys.executable, *command, f"postgresql://u:{SECRET}@127.0.0.1:1/db"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": "token"},
    )
    assert server.stderr is not None
    told = server.stderr.readline()
    server.terminate()
    told += server.communicate()[1]
    assert "serving postgresql://u:***@127.0.0.1:1/db on http://" in told
    assert SECRET not in told
