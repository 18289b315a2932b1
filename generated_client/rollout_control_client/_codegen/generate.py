"""Writes the package's `_generated` folder from the spec; with `--check` only says whether that would change it.

Run it as `nox -s generate`, which installs the generator and the formatter that it runs, both pinned exactly.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

CODEGEN = Path(__file__).parent
GENERATED = CODEGEN.parent / "_generated"
SPEC = CODEGEN.parents[2] / "spec" / "rollout_control_spec" / "openapi.yaml"
HEADER = "# Made from spec/rollout_control_spec/openapi.yaml by `nox -s generate`. Don't edit.\n\n"
SCHEMAS = "#/components/schemas/"


def main() -> int:
    """Returns the exit status: 1 if `--check` found a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if something would change")
    check = parser.parse_args().check

    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        if check:
            differences = compare(fresh, GENERATED)
            for difference in differences:
                print(difference, file=sys.stderr)
            if differences:
                print("the generated client is not what the spec gives; run `nox -s generate`", file=sys.stderr)
            return 1 if differences else 0
        shutil.rmtree(GENERATED, ignore_errors=True)
        shutil.copytree(fresh, GENERATED)
    return 0


def generate(folder: Path) -> Path:
    """Generates into an empty folder, since the generator leaves stale files where it finds any.

    Raises:
        subprocess.CalledProcessError: The generator failed or warned.
    """
    document = yaml.safe_load(SPEC.read_bytes())
    source = folder / "openapi.json"
    source.write_text(json.dumps(inline_scalars(document, document["components"]["schemas"])), encoding="utf-8")
    output = folder / "generated"
    # The formatter that is installed beside the generator; without one on PATH the output is left unformatted.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    subprocess.run(
        [
            sys.executable,
            *("-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"),
            *("--path", source, "--output-path", output),
            *("--config", CODEGEN / "config.yaml", "--custom-template-path", CODEGEN / "templates"),
        ],
        env={**os.environ, "PATH": path},
        check=True,
    )
    for module in output.rglob("*.py"):
        module.write_text(HEADER + module.read_text(encoding="utf-8"), encoding="utf-8")
    return output


def inline_scalars(node: Any, schemas: dict[str, Any]) -> Any:
    """Replaces each reference to a schema that isn't an object by the schema: the generator drops its constraints.

    What stands beside a reference, such as a description, goes over what the schema says.
    """
    if isinstance(node, list):
        return [inline_scalars(item, schemas) for item in node]
    if not isinstance(node, dict):
        return node
    target = schemas.get(str(node.get("$ref", "")).removeprefix(SCHEMAS), {"type": "object"})
    if target["type"] != "object":
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    return {key: inline_scalars(value, schemas) for key, value in node.items()}


def compare(fresh: Path, present: Path) -> list[str]:
    """Returns the differences between two trees, missing and extra files included, one line each."""
    wanted, found = contents(fresh), contents(present)
    return (
        [f"missing: {name}" for name in sorted(wanted.keys() - found.keys())]
        + [f"extra: {name}" for name in sorted(found.keys() - wanted.keys())]
        + [f"differs: {name}" for name in sorted(wanted.keys() & found.keys()) if wanted[name] != found[name]]
    )


def contents(tree: Path) -> dict[str, bytes]:
    """Returns the bytes of every file below the folder, by relative path; compiled modules don't count."""
    return {
        file.relative_to(tree).as_posix(): file.read_bytes()
        for file in tree.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


if __name__ == "__main__":
    sys.exit(main())
