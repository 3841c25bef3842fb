"""The compiled fast path: built where a C compiler and Python's headers are, left out elsewhere."""

import shutil
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build import build

# Python's limited API: one module, and so one wheel, for 3.11 and all later versions. A
# free-threaded Python has none.
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")
SOURCES = ("native", "catalog", "files", "get", "put")


class Build(build):
    """Builds from the sources alone: setuptools also installs what an earlier build has left."""

    def run(self) -> None:
        if self.build_lib.startswith(f"{self.build_base}/"):
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(
    cmdclass={"build": Build},
    ext_modules=[
        Extension(
            "winkformats._native",
            [f"formats/winkformats/_{name}.c" for name in SOURCES],
            depends=[f"formats/winkformats/{name}.h" for name in ("_native", "xxhash")],
            define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
            extra_compile_args=["-O3"],
            optional=True,
            py_limited_api=LIMITED,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
