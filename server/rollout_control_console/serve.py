"""The command `rollout-control serve`."""

import os

import click
from rollout_control_server.ledger import shown_ledger_url
from rollout_control_server.manifests import DEFAULT_ANSWER_LIMIT
from rollout_control_spec import AUTH_TOKEN_VARIABLE, validate_auth_token

from rollout_control_console.extras import requires_extra
from rollout_control_console.ledgers import ledger_errors_end_command, ledger_option, open_named_ledger

__all__ = ["serve"]


@click.command()
@ledger_option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--answer-limit",
    default=DEFAULT_ANSWER_LIMIT,
    show_default=True,
    type=click.IntRange(1),
    help="Bytes of manifests in one answer to a trainer that asks for many.",
)
def serve(ledger_url: str, host: str, port: int, answer_limit: int) -> None:
    """Serve the control plane until SIGINT or SIGTERM.

    The bearer token is read from the environment variable ROLLOUT_CONTROL_AUTH_TOKEN.

    Exits with 1 if the ledger cannot answer now or the address cannot be listened on: another start may succeed. Exits
    with 2 if the ledger or an option has to be changed first.
    """
    with requires_extra("server"):
        from rollout_control_server.app import create_app
        from rollout_control_server.serving import run_server
    auth_token = os.environ.get(AUTH_TOKEN_VARIABLE, "")
    if not auth_token:
        raise click.UsageError(f"set {AUTH_TOKEN_VARIABLE} to the bearer token that trainers send")
    try:
        validate_auth_token(auth_token)
    except ValueError as error:
        raise click.UsageError(f"{AUTH_TOKEN_VARIABLE}: {error}") from error
    ledger = open_named_ledger(ledger_url)
    app = create_app(ledger, auth_token, answer_limit=answer_limit)
    shown = shown_ledger_url(ledger_url)

    def announce(url: str) -> None:
        click.echo(f"serving {shown} on {url}", err=True)

    try:
        with ledger_errors_end_command():
            run_server(app, host, port, on_listening=announce, ledger=ledger)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
