"""What must hold where one part of the distribution is installed alone: `nox -s install` runs this with its name."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import files

COMMAND = ("click", "rich")
SERVING = ("litestar", "uvicorn", "uvloop", "httptools", "apsw")
CHECKING = ("schemathesis", "jsonschema_rs")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "ROLLOUT_CONTROL_AUTH_TOKEN": "TOKEN", "no_proxy": "*"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def require(condition: object, what: str) -> None:
    if not condition:
        sys.exit(f"NOT SO: {what}")
    print(f"ok: {what}")


def the_command() -> str:
    command = shutil.which("rollout-control")
    require(command, "the command rollout-control is installed")
    return str(command)


def lacks(*modules: str) -> None:
    for module in modules:
        require(importlib.util.find_spec(module) is None, f"there is no {module}")


def client() -> None:
    lacks(*COMMAND, *SERVING, "aiohttp", "asyncpg", *CHECKING)
    ended = run(sys.executable, "-W", "error", "-c", "import rollout_control_client, rollout_control_spec")
    require(ended.returncode == 0, f"the client is imported: {ended.stderr}")
    for arguments in ([], ["--help"], ["serve"], ["check", "http://127.0.0.1:1"]):
        ended = run(the_command(), *arguments)
        require(ended.returncode == 1, f"without an extra, 'rollout-control {' '.join(arguments)}' ends with status 1")
        for extra in ("server", "check", "cli"):
            require(f"pip install 'rollout-control[{extra}]'" in ended.stderr, f"and names the extra {extra}")
        require("Traceback" not in ended.stderr, "without a traceback")
    ended = run(sys.executable, "-c", "from rollout_control_server import create_app")
    require("rollout-control[server]" in ended.stderr, "an import of the server names its extra")


def fast() -> None:
    lacks(*COMMAND, *SERVING, "asyncpg", *CHECKING)
    program = (
        "import asyncio, sys; from rollout_control_client import SyncRolloutControlClient, ServerUnreachableError\n"
        "client = SyncRolloutControlClient('http://127.0.0.1:1', 'TOKEN', 0.5)\n"
        "try: client.manifest('r')\n"
        "except ServerUnreachableError: print('aiohttp' in sys.modules)\n"
    )
    ended = run(sys.executable, "-W", "error", "-c", program)
    require(ended.stdout == "True\n", f"the client connects by aiohttp: {ended.stdout}{ended.stderr}")


def cli() -> None:
    lacks(*SERVING, "apsw", "asyncpg", *CHECKING)
    ended = run(the_command(), "--help")
    require(ended.returncode == 0, f"the command lists its subcommands: {ended.stderr}")
    for name in ("serve", "demo", "check", "retire", "forget-fences", "copy", "verify"):
        require(f"  {name} " in ended.stdout, f"among them {name}")
        ended_help = run(the_command(), name, "--help")
        require(ended_help.returncode == 0, f"{name} tells how it is used: {ended_help.stderr}")
    for arguments, extra in (
        (["serve"], "server"),
        (["demo", "--rollouts", "20"], "server"),
        (["verify"], "server"),
        (["copy", "sqlite:///one.sqlite", "sqlite:///other.sqlite"], "server"),
        (["check", "http://127.0.0.1:1"], "check"),
        (["forget-fences"], "server"),
        (["forget-fences", "--ledger", "postgresql://127.0.0.1:1/none"], "postgres"),
    ):
        ended = run(the_command(), *arguments)
        require(ended.returncode == 2, f"{arguments[0]} ends with status 2")
        require(f"pip install 'rollout-control[{extra}]'" in ended.stderr, f"and names the extra {extra}")
        require("Traceback" not in ended.stderr, "without a traceback")

    ended = run(the_command(), "retire", "--idle-for", "6h", "--url", f"http://127.0.0.1:{free_port()}")
    require(ended.returncode == 1, f"a subcommand that asks a server needs no other extra: {ended.stderr}")
    require("Traceback" not in ended.stderr, "and says in words that it does not reach the server")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def server() -> None:
    lacks("asyncpg", *CHECKING)
    ended = run(the_command(), "demo", "--rollouts", "20")
    require(ended.returncode == 0, f"the demo runs: {ended.stdout}{ended.stderr}")
    ended = run(the_command(), "demo", "--rollouts", "20", "--ledger", "postgresql://127.0.0.1:1/none")
    require("rollout-control[postgres]" in ended.stderr, "a PostgreSQL ledger's URL names the extra that it needs")
    ended = run(the_command(), "check", "http://127.0.0.1:1")
    require("rollout-control[check]" in ended.stderr, "and the check the extra that it needs")


def postgres() -> None:
    ended = run(
        sys.executable, "-W", "error", "-c", "from rollout_control_server.ledger.postgres import PostgresLedger"
    )
    require(ended.returncode == 0, f"PostgresLedger is imported: {ended.stderr}")


class EmptyManifests(BaseHTTPRequestHandler):
    """A server of nothing but manifests of rollouts that recorded no call, without authentication."""

    def do_GET(self) -> None:
        rollout_id = self.path.split("/")[-2]
        manifest = {"schema_version": 2, "rollout_id": rollout_id, "records": [], "failures": []}
        self.answer(200, json.dumps(manifest).encode())

    def do_POST(self) -> None:
        self.answer(404, b"{}")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def check() -> None:
    lacks(*SERVING, "asyncpg")
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyManifests) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base_url = f"http://127.0.0.1:{server.server_port}"
        ended = run(the_command(), "check", base_url, "--json", "--max-examples", "1")
        server.shutdown()
    require("Traceback" not in ended.stderr, f"the check of a server runs to its end: {ended.stderr}")
    require(ended.returncode == 1, "and ends with status 1, since the server asks for no token")
    verdicts = {outcome["id"]: outcome["verdict"] for outcome in json.loads(ended.stdout)["requirements"]}
    require(verdicts["manifest.never-recorded"] == "holds", "it finds what that server does right")
    require(verdicts["auth.missing-token"] == "broken", "and what it does wrong")


def every_part() -> None:
    names = {str(path) for path in files("rollout-control") or ()}
    require("rollout_control_spec/openapi.yaml" in names, "the wheel holds the spec")
    for package in (
        "rollout_control_spec",
        "rollout_control_check",
        "rollout_control_server",
        "rollout_control_console",
        "rollout_control_client",
    ):
        require(f"{package}/py.typed" in names, f"{package} says that it has types")
    require(not any("_codegen" in name or name.startswith("tests") for name in names), "and nothing of our tools")
    from rollout_control_spec import openapi_yaml

    require(openapi_yaml().startswith(b"# The rollout-control protocol."), "the spec is read from the wheel")


PARTS: dict[str, Callable[[], None]] = {
    "client": client,
    "fast": fast,
    "cli": cli,
    "server": server,
    "postgres": postgres,
    "check": check,
}

if __name__ == "__main__":
    every_part()
    PARTS[sys.argv[1]]()
