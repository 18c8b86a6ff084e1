"""Builds the compiled core. Everything else is in pyproject.toml.

csrc is compiled once into a static library; each Cython module links what it uses of it. The C files
hold no mutable globals, so a concept may be linked into several modules.

Environment switches (each is off unless set):
  AGENTX_DEBUG=1            assertions and live-object counters in the core
  AGENTX_SANITIZE=LIST      -fsanitize=LIST, for example address,undefined
  AGENTX_COVERAGE=1         gcov instrumentation
  AGENTX_WERROR=1           compiler warnings are errors (used by CI)
  AGENTX_ONLY=NAME,...      build only these modules
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

debug = os.environ.get("AGENTX_DEBUG") == "1"
cflags = ["-std=gnu11", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
cflags += ["-O1", "-g3", "-DAX_DEBUG=1", "-UNDEBUG"] if debug else ["-O2", "-g1"]
ldflags = ["-pthread"]
if os.environ.get("AGENTX_WERROR") == "1":
    # Code that Cython generates is outside our reach; the three warnings below come only from it.
    cflags += ["-Werror", "-Wno-unused-parameter", "-Wno-unused-function", "-Wno-cast-function-type"]
if sanitize := os.environ.get("AGENTX_SANITIZE"):
    cflags += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    ldflags += [f"-fsanitize={sanitize}"]
if os.environ.get("AGENTX_COVERAGE") == "1":
    cflags += ["--coverage"]
    ldflags += ["--coverage"]

sources = sorted(str(path) for path in Path("csrc").rglob("*.c"))
headers = sorted(str(path) for path in Path("csrc").rglob("*.h"))
modules = sorted(path.stem for path in Path("agentx_engine/core").glob("*.pyx"))
if only := os.environ.get("AGENTX_ONLY"):
    modules = only.split(",")

setup(
    libraries=[
        (
            "agentx",
            {"sources": sources, "include_dirs": ["csrc"], "cflags": cflags, "obj_deps": {"": headers}},
        )
    ],
    ext_modules=cythonize(
        [
            Extension(
                f"agentx_engine.core.{name}",
                [f"agentx_engine/core/{name}.pyx"],
                include_dirs=["csrc"],
                depends=[*headers, *sources],
                extra_compile_args=cflags,
                extra_link_args=ldflags,
            )
            for name in modules
        ],
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "embedsignature": True},
    ),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
