"""Generates clients of the spec in TypeScript and Java, compiles them, and runs the one in TypeScript.

Run by `nox -s foreign-clients`, with the folder of the npm packages and a folder to work in. The generators are those
that people use: openapi-typescript with openapi-fetch, and OpenAPI Generator, whose JAR is in the Python package
openapi-generator-cli. The Java client needs Jackson. That JAR brings it, so the client is compiled against the JAR, and
no Maven repository is asked.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from rollout_control_server import MemoryLedger, create_app
from rollout_control_server.record_rows import record_rows
from rollout_control_spec import AUTH_TOKEN_VARIABLE
from rollout_control_spec.samples import sample_calls
from served import TOKEN, serving

ROLLOUT_ID = "train-0007.sample-3"
HERE = Path(__file__).parent
GENERATED_ANNOTATION = (
    "package javax.annotation; "
    'public @interface Generated { String[] value(); String date() default ""; String comments() default ""; }'
)
"""An annotation that the JDK had until Java 8, and that the generated client still uses."""


def run(*command: str | Path, cwd: Path | None = None) -> None:
    environment = {**os.environ, AUTH_TOKEN_VARIABLE: TOKEN}
    subprocess.run([str(word) for word in command], check=True, env=environment, cwd=cwd)


def typescript(spec: Path, node_modules: Path, folder: Path) -> Path:
    """Generates the types, checks the program against them strictly, and returns it compiled."""
    folder.mkdir()
    (folder / "node_modules").symlink_to(node_modules)
    shutil.copy(HERE / "lifecycle.ts", folder)
    run(node_modules / ".bin/openapi-typescript", spec, "--output", folder / "control.d.ts")
    options = ["--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--outDir", "js"]
    # It looks for the types of Node below the folder that it runs in.
    run(node_modules / ".bin/tsc", *options, "lifecycle.ts", cwd=folder)
    return folder / "js" / "lifecycle.js"


def java(spec: Path, folder: Path) -> None:
    """Generates a client and compiles it."""
    jar = files("openapi_generator_cli") / "openapi-generator.jar"
    properties = "openApiNullable=false,annotationLibrary=none,documentationProvider=none,useJakartaEe=false"
    with as_file(jar) as path:
        command = ["generate", "-q", "-g", "java", "--library", "native", "-i", spec, "-o", folder]
        run("java", "-jar", path, *command, f"--additional-properties={properties}")
        (folder / "Generated.java").write_text(GENERATED_ANNOTATION)
        sources = [folder / "Generated.java", *(folder / "src/main").rglob("*.java")]
        run("javac", "-nowarn", "-d", folder / "classes", "-cp", path, *sources)
    print(f"Java: {len(list((folder / 'classes').rglob('*.class')))} classes compiled")


async def recorded() -> MemoryLedger:
    ledger = MemoryLedger()
    failure = {"failure": {"model_call_id": "failed", "reason": "worker_capture_failed"}}
    await record_rows(ledger, ROLLOUT_ID, [*sample_calls(ROLLOUT_ID, 3), failure])
    return ledger


def main(node_modules: Path, folder: Path) -> None:
    with as_file(files("rollout_control_spec") / "openapi.yaml") as spec:
        program = typescript(spec, node_modules, folder / "typescript")
        with serving(create_app(asyncio.run(recorded()), TOKEN)) as base_url:
            run("node", program, base_url, ROLLOUT_ID)
        java(spec, folder / "java")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
