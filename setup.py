"""Builds the compiled part of the hot path; without a C compiler the package is installed all the same.

With Cython from its source; a source distribution also has the C code that Cython made of it. The description is the
README without its picture. A package index cannot resolve links to files of the repository: they lead below the address
in MQBROKER_LINKS (such as https://HOST/OWNER/mqbroker/blob/main/), and without one only their text is left.
"""

import os
import re
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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


class BuildOnce(build_ext):
    """Does not build again for an editable installation what an earlier one has left beside the sources: tox makes
    many, and each build takes half a minute of a core. Nor for a wheel if MQBROKER_BUILD_ONCE is set."""

    def build_extension(self, extension: Extension) -> None:
        made = KERNEL / Path(self.get_ext_filename(extension.name)).name
        sources = [Path(name) for name in (*extension.sources, *extension.depends)]
        is_new = made.exists() and made.stat().st_mtime > max(source.stat().st_mtime for source in sources)
        if is_new and (self.editable_mode or "MQBROKER_BUILD_ONCE" in os.environ):
            place = Path(self.get_ext_fullpath(extension.name))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(made, place)
        else:
            super().build_extension(extension)


readme = re.sub(r"^\.\. image:: (?!https:).*\n(?: +:.*\n)*\n", "", Path("README.rst").read_text(), flags=re.MULTILINE)
links = os.environ.get("MQBROKER_LINKS", "")
target = rf"`\1 <{links}\2>`__" if links else r"\1"
readme = re.sub(r"`([^`<]+)\s<(?!https:)([^`>]+)>`__", target, readme)

setup(ext_modules=extensions, cmdclass={"build_ext": BuildOnce}, long_description=readme)
