"""Builds the compiled part of the hot path; without a C compiler the package is installed all the same."""

from Cython.Build import cythonize
from setuptools import Extension, setup

SOURCE = "mqbroker/kernel/compiled.pyx"
PARTS = [f"mqbroker/kernel/{name}.pxi" for name in ("bytes", "records", "sends", "sockets")]

extensions = cythonize([Extension("mqbroker.kernel.compiled", [SOURCE], depends=PARTS)], build_dir="build/cython")
for extension in extensions:
    extension.optional = True  # cythonize drops it

setup(ext_modules=extensions)
