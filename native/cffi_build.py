"""Builds the native engine: include/decl.h and src/*.c to harness/gdrstorm/engine/_native.abi3.so.

One shared object for Python 3.11 and later (limited API). Needs a C compiler and Python's headers, no libibverbs and
no libcuda: those are dlopened. Our own C is compiled with every warning an error, cffi's generated file is not.

    python native/cffi_build.py [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cffi

NATIVE = Path(__file__).resolve().parent
DEFAULT_OUTPUT = NATIVE.parent / "harness" / "gdrstorm" / "engine" / "_native.abi3.so"
MODULE = "gdrstorm.engine._native"
# -fno-semantic-interposition: calls between our files may be inlined and need no PLT.
COMMON = [
    "-std=c11",
    "-O2",
    "-g",
    "-fPIC",
    "-pthread",
    "-D_DEFAULT_SOURCE",
    "-fno-semantic-interposition",
]
STRICT = ["-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]
# Python's symbols come from the interpreter that loads the module, so they stay undefined.
LINK_MODULE = ["-shared", "-pthread", "-Wl,-z,now"]


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def run(command: list[str]) -> None:
    """Run one tool; its own message is the error."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(f"native/cffi_build.py: failed ({done.returncode}): {shlex.join(command)}")


def generate(directory: Path) -> Path:
    """The C file of the Python module, made by cffi from the declarations."""
    ffi = cffi.FFI()
    ffi.cdef((NATIVE / "include" / "decl.h").read_text(encoding="utf-8"))
    ffi.set_source(MODULE, '#include "gs.h"', py_limited_api=True)
    path = directory / "_native.c"
    ffi.emit_c_code(str(path))
    return path


def compile_file(source: Path, flags: list[str], directory: Path) -> Path:
    target = directory / f"{source.stem}.o"
    includes = ["-I", str(NATIVE / "include")]
    run([*compiler(), *COMMON, *flags, *includes, "-c", str(source), "-o", str(target)])
    return target


def build(output: Path) -> None:
    """Compile everything and put the module at `output` in one step, never half written."""
    sources = sorted((NATIVE / "src").glob("*.c"))
    with (
        tempfile.TemporaryDirectory(prefix="gdrstorm-native-") as name,
        ThreadPoolExecutor() as pool,
    ):
        directory = Path(name)
        python = ["-I", sysconfig.get_paths()["include"]]
        jobs = [pool.submit(compile_file, s, STRICT, directory) for s in sources]
        module = compile_file(generate(directory), ["-fvisibility=hidden", *python], directory)
        objects = [str(job.result()) for job in jobs]
        output.parent.mkdir(parents=True, exist_ok=True)
        unfinished = output.with_suffix(".so.new")
        run([*compiler(), *LINK_MODULE, *objects, str(module), "-ldl", "-o", str(unfinished)])
        unfinished.replace(output)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the native engine.")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    output = parser.parse_args().output
    build(output)
    print(output)


if __name__ == "__main__":
    main()
