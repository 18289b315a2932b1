"""How people work on rollout-control. `nox -l` lists the sessions; `nox -s tests` is the one to run before a commit."""

import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typing", "generate", "tests"]
nox.options.default_venv_backend = "venv"
nox.options.error_on_external_run = True

PYPROJECT = nox.project.load_toml("pyproject.toml")
ROOT = Path(__file__).parent
SPEC = "spec/rollout_control_spec/openapi.yaml"
REDOCLY = "@redocly/cli@2.11.0"
GENERATE = "generated_client/rollout_control_client/_codegen/generate.py"


def dependency_group(name: str) -> list[str]:
    return list(nox.project.dependency_groups(PYPROJECT, name))


def install_wheel(session: nox.Session, *extras: str, groups: tuple[str, ...] = ()) -> None:
    """Builds the wheel and installs it, not the checkout, with extras and dependency groups."""
    dist = Path(session.create_tmp()) / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(ROOT))
    (wheel,) = dist.glob("*.whl")
    suffix = f"[{','.join(extras)}]" if extras else ""
    session.install(f"{wheel}{suffix}", *(line for group in groups for line in dependency_group(group)))


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests that need no other program, on the built wheel."""
    install_wheel(session, "server", "postgres", "check", groups=("test",))
    session.run("python", "-m", "pytest", "--ignore", "tests/interop", *session.posargs)


@nox.session
def generate(session: nox.Session) -> None:
    """Write the generated client from the spec; with `-- --check`, only say whether it would differ."""
    session.install(*dependency_group("codegen"))
    session.run("python", GENERATE, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, the spec, and the directions of imports."""
    session.install(*dependency_group("lint"), "msgspec")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("openapi-spec-validator", SPEC)
    session.run("yamllint", "--strict", "spec")
    node_modules = session.create_tmp()
    session.run("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", node_modules, REDOCLY)
    session.run(
        f"{node_modules}/node_modules/.bin/redocly", "lint", "spec/rollout_control_spec/openapi.yaml", external=True
    )
    session.run("lint-imports", env={"PYTHONPATH": "spec:server:generated_client"})


@nox.session
def typing(session: nox.Session) -> None:
    """Check types: mypy over the three packages, pyright over the public API."""
    install_wheel(session, "server", "postgres", "check", groups=("typing", "test"))
    session.run("mypy")
    session.run("mypy", "--strict", "tests/typing")
    session.run("pyright")
