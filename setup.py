"""Builds the compiled part of the hot path; without a C compiler the package is installed all the same.

With Cython from its source; a source distribution also has the C code that Cython made of it. The description is the
README without what only its repository has: the picture, and links to other files.
"""

import re
from pathlib import Path

from setuptools import Extension, setup

try:
    from Cython.Build import cythonize
except ImportError:
    cythonize = None

KERNEL = Path("mqbroker/kernel")

if cythonize is not None:
    parts = sorted(map(str, KERNEL.glob("*.pxi")))
    extensions = cythonize([Extension("mqbroker.kernel.compiled", [str(KERNEL / "compiled.pyx")], depends=parts)])
else:
    extensions = [Extension("mqbroker.kernel.compiled", [str(KERNEL / "compiled.c")])]
for extension in extensions:
    extension.optional = True  # cythonize drops it

readme = re.sub(r"^\.\. image:: (?!https:).*\n(?: +:.*\n)*\n", "", Path("README.rst").read_text(), flags=re.MULTILINE)
readme = re.sub(r"`([^`<]+)\s<(?!https:)[^`>]+>`__", r"\1", readme)

setup(ext_modules=extensions, long_description=readme)
