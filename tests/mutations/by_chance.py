"""Make mistakes by chance in files, and list those that their tests do not notice, to be read by a person.

``python -m tests.mutations.by_chance [--count N] [--seed N] FILE...``. The mistakes are those of cosmic-ray's
operators. Tests are those of the mirrored folder that name the module, without the compiled module; where there are
none, those that import from its package, or the whole folder; some need the part `spark`. A survivor is a test that is
missing, or a change that makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import random
import sys
from pathlib import Path
from types import ModuleType

import attrs

from tests.mutations.mutation import SOURCE, Mutation
from tests.mutations.trials import survivors
from tests.sources import ROOT

#: Of operators that exaggerate: what they make is noticed by any test, or is a matter of style.
LEFT_OUT = ("RemoveDecorator", "ExceptionReplacer", "VariableReplacer", "VariableInserter")


@attrs.frozen(kw_only=True)
class Changed(Mutation):
    """A mistake that is a whole new text of its file."""

    text: str

    def applied_to(self, text: str) -> str:
        return self.text


def tests_of(file: Path) -> tuple[str, ...]:
    """The tests of a file of the package, of those below the mirrored folder: those that name it, its own first; where
    there are none, those that import from its package."""
    module = file.with_suffix("").as_posix().replace("/", ".")
    folder = ROOT / "tests" / file.parent
    while not folder.is_dir():
        folder = folder.parent
    paths = sorted(folder.rglob("test_*.py"), key=lambda path: (file.stem not in path.stem, path))
    of_file = [path for path in paths if file.stem in path.stem or f"mqbroker.{module} import" in path.read_text()]
    package = f"from mqbroker.{module.rpartition('.')[0]} import"
    found = of_file or [path for path in paths if package in path.read_text()]
    return tuple(str(path.relative_to(ROOT)) for path in found or [folder])


def meaning(source: str) -> str:
    """A module's code without its annotations, in which a mistake makes no difference; empty if it is none, as where an
    operator has replaced the `*` before arguments that are named."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def mistakes_in(file: Path, cosmic_ray: ModuleType) -> list[Changed]:
    """All that cosmic-ray can make of a file of the package."""
    source = (SOURCE / file).read_text()
    tree = cosmic_ray.ast.get_ast(source)
    tests = tests_of(file)
    unchanged = meaning(source)
    found = []
    for name in cosmic_ray.plugins.operator_names():
        if name.partition("/")[2].startswith(LEFT_OUT):
            continue
        operator = cosmic_ray.plugins.get_operator(name)()
        places = [place for node in cosmic_ray.ast.ast_nodes(tree) for place in operator.mutation_positions(node)]
        for occurrence in range(len(places)):
            text = cosmic_ray.mutating.mutate_code(source, operator, occurrence)
            if text is None or meaning(text) in (unchanged, ""):
                continue
            lines = difflib.unified_diff(source.splitlines(), text.splitlines(), lineterm="", n=0)
            diff = "\n      ".join(line for line in lines if not line.startswith(("---", "+++")))
            title = f"{file} {name.partition('/')[2]} {occurrence}\n      {diff}"
            found.append(Changed(title, str(file), "", "", tests, text=text))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.by_chance", description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="how many mistakes to make in all")
    parser.add_argument("--seed", type=int, default=1, help="which of them")
    parser.add_argument("file", nargs="+", type=Path, help="mqbroker/...")
    arguments = parser.parse_args()
    files = [path.resolve() for path in arguments.file]
    for file in files:
        if file.suffix == ".pxi":
            parser.error(
                f"{file.name}: mistakes by chance are made in Python alone. Write some of the compiled module by hand, "
                "in tests/mutations/known/kernel.py"
            )
        if file.suffix != ".py" or not file.is_file() or SOURCE not in file.parents:
            parser.error(f"{file}: not a Python file of {SOURCE}")
    import cosmic_ray.ast
    import cosmic_ray.mutating
    import cosmic_ray.plugins

    found = [mistake for file in files for mistake in mistakes_in(file.relative_to(SOURCE), cosmic_ray)]
    chosen = random.Random(arguments.seed).sample(found, min(arguments.count, len(found)))
    survived = survivors(chosen)
    print(f"{len(chosen) - len(survived)} of {len(chosen)} mistakes noticed, of {len(found)} that could be made")
    for mistake in survived:
        print(f"SURVIVED  {mistake.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
