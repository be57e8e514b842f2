"""What is installed is what is here: the files of the wheel, one version in all places, and an import that stays light."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import snugfit

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, open, built from a copy by the build backend that is installed: nothing is fetched."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    code = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(folder / built.stdout.splitlines()[-1]) as archive:
        yield archive


def test_the_wheel_has_every_file_of_the_package(wheel):
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "snugfit").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert "snugfit/py.typed" in source
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == source


def test_the_wheel_says_what_it_needs(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    told = wheel.read(name).decode()
    assert f"\nVersion: {snugfit.__version__}\n" in told
    lowest, beyond = re.search(r"\nRequires-Dist: torch<2\.(\d+),>=2\.(\d+)\n", told).group(2, 1)
    assert f"torch 2.{lowest} to 2.{int(beyond) - 1}" in (ROOT / "README.md").read_text()


def test_one_version_everywhere():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (str(cited["version"]), str(cited["date-released"])) == newest.groups()
    assert newest[1] == snugfit.__version__


def test_importing_snugfit_loads_no_library():
    """What takes the time; `python -X importtime -c 'import snugfit'` says how much it is."""
    code = (
        "import sys; before = set(sys.modules); import snugfit; new = set(sys.modules) - before\n"
        "print(*{name.partition('.')[0] for name in new} - set(sys.stdlib_module_names), len(new))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    name, modules = told.split()
    assert name == "snugfit" and int(modules) < 130
