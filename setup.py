"""The compiled fast path: built where a C compiler and Python's headers are, left out elsewhere."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "winkformats._native",
            ["formats/winkformats/_native.c"],
            depends=["formats/winkformats/_xxh3.h"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
