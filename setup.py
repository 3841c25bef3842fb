"""The compiled fast path: built where a C compiler and Python's headers are, left out elsewhere."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "winkformats._native",
            [f"formats/winkformats/{name}.c" for name in ("_native", "_files", "_get", "_put")],
            depends=[f"formats/winkformats/{name}.h" for name in ("_native", "_xxh3")],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
