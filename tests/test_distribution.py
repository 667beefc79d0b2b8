"""What is distributed beside the packages. That it is there where it is installed is tested in tests/interop."""

from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_source_distribution_has_what_tests_and_documentation_need() -> None:
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    folders = ("bench", "changes", "conf", "contrib", "docs", "examples", "tests")
    assert {f"graft {folder}" for folder in folders} <= set(lines)


def test_an_installation_has_every_annotated_file_of_settings_and_every_page() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    shared = setup["options.data_files"]
    patterns = {folder: text.split() for folder, text in shared.items()}
    folders = {path.parent.relative_to(ROOT / "docs") for path in ROOT.glob("docs/*/*.rst")}
    pages = {f"share/doc/mqbroker/{folder}": [f"docs/{folder}/*.rst"] for folder in folders}
    assert patterns == {
        "share/mqbroker/conf": ["conf/*"],
        "share/mqbroker/examples": ["examples/*.py"],
        "share/mqbroker/examples/tutorial": ["examples/tutorial/*.py"],
        "share/doc/mqbroker": ["README.rst", "docs/*.rst"],
        **pages,
    }
    assert len(pages) == 4
    assert {path.name for path in ROOT.glob("conf/*")} == {"broker.conf", "namesrv.conf", "plain_acl.yml"}
