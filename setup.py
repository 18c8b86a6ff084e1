"""Builds the compiled core. Everything else is in pyproject.toml.

Environment switches (each is off unless set):
  AGENTX_DEBUG=1            assertions and live-object counters in the core
  AGENTX_SANITIZE=LIST      -fsanitize=LIST, for example address,undefined
  AGENTX_COVERAGE=1         gcov instrumentation
  AGENTX_WERROR=1           compiler warnings in csrc are errors (used by CI)
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# Each Cython module and the C concepts that it links. The C files hold no mutable globals, so a
# concept may be linked into several modules.
MODULES = {
    "clock": [],
    "hdr": ["hdr"],
    "http1": ["http1"],
    "ids": ["ids"],
    "rope": ["rope"],
    "sse": ["sse"],
    "chunk": ["chunk"],
    "words": ["words"],
    "exchange": ["exchange", "timers", "http1", "sse", "chunk", "rope", "hdr"],
    "reactor": ["reactor", "flight", "conn", "timers", "exchange", "http1", "sse", "chunk", "rope", "hdr"],
    "truth": ["truth/metronome", "truth/peer", "truth/answer", "truth/request", "truth/floor", "hdr"],
}

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

only = os.environ.get("AGENTX_ONLY", "").split(",") if os.environ.get("AGENTX_ONLY") else MODULES
setup(
    ext_modules=cythonize(
        [
            Extension(
                f"agentx_engine.core.{name}",
                [f"agentx_engine/core/{name}.pyx", *(f"csrc/{c}.c" for c in MODULES[name])],
                include_dirs=["csrc"],
                depends=[str(path) for path in Path("csrc").rglob("*.h")],
                extra_compile_args=cflags,
                extra_link_args=ldflags,
            )
            for name in only
        ],
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "embedsignature": True},
    )
)
