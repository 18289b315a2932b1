"""What must hold where one part of the distribution is installed alone: `nox -s install` runs this with its name."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import files

SERVER_ONLY = ("litestar", "uvicorn", "click", "rich")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def require(condition: object, what: str) -> None:
    if not condition:
        sys.exit(f"NOT SO: {what}")
    print(f"ok: {what}")


def the_command() -> str:
    command = shutil.which("rollout-control")
    require(command, "the command rollout-control is installed")
    return str(command)


def client() -> None:
    for module in (*SERVER_ONLY, "asyncpg", "schemathesis"):
        require(importlib.util.find_spec(module) is None, f"the client brings no {module}")
    ended = run(sys.executable, "-W", "error", "-c", "import rollout_control_client, rollout_control_spec")
    require(ended.returncode == 0, f"the client is imported: {ended.stderr}")
    ended = run(the_command(), "serve")
    require(ended.returncode == 1, "without the server extra, the command ends with status 1")
    require("pip install 'rollout-control[server]'" in ended.stderr, "and says what to install")
    ended = run(sys.executable, "-c", "from rollout_control_server import create_app")
    require("rollout-control[server]" in ended.stderr, "and so does an import of the server")


def server() -> None:
    require(importlib.util.find_spec("asyncpg") is None, "the server brings no database driver")
    require(importlib.util.find_spec("schemathesis") is None, "the server brings no fuzzer")
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


def check() -> None:
    ended = run(the_command(), "check", "--help")
    require(ended.returncode == 0, f"the check tells how it is used: {ended.stderr}")


def every_part() -> None:
    names = {str(path) for path in files("rollout-control") or ()}
    require("rollout_control_spec/openapi.yaml" in names, "the wheel holds the spec")
    for package in ("rollout_control_spec", "rollout_control_server", "rollout_control_client"):
        require(f"{package}/py.typed" in names, f"{package} says that it has types")
    require(not any("_codegen" in name or name.startswith("tests") for name in names), "and nothing of our tools")
    from rollout_control_spec import openapi_yaml

    require(openapi_yaml().startswith(b"# The rollout-control protocol."), "the spec is read from the wheel")


PARTS: dict[str, Callable[[], None]] = {"client": client, "server": server, "postgres": postgres, "check": check}

if __name__ == "__main__":
    every_part()
    PARTS[sys.argv[1]]()
