"""Modules that stand in the place of others until something is asked of them."""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest

from snugfit.late_modules import StandIn, late_functions


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of which one function and one constant are known, and that says when it is loaded."""
    folder = tmp_path / "heavy"
    folder.mkdir()
    (folder / "__init__.py").write_text("LOADED = 'heavy'\ndef double(x): return 2 * x\nSIZE = 7\n")
    (folder / "part.py").write_text("import heavy\nFOUND = heavy.SIZE\n")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = []

    def load():
        if isinstance(sys.modules.get("heavy"), StandIn):
            del sys.modules["heavy"]
            __import__("heavy")
            loaded.append("heavy")

    StandIn(ModuleSpec("heavy", None, is_package=True), load, size=3, **late_functions("heavy", ["double"], load))
    yield loaded
    for name in [name for name in sys.modules if name.partition(".")[0] == "heavy"]:
        del sys.modules[name]


def test_what_it_has_is_imported_without_loading(package):
    import heavy
    from heavy import double, size

    assert (size, heavy.size, callable(double)) == (3, 3, True)
    assert not hasattr(heavy, "__wrapped__") and heavy.__file__ is None
    assert package == []


def test_a_function_loads_when_it_is_called(package):
    from heavy import double

    assert double(4) == 8
    assert package == ["heavy"] and type(sys.modules["heavy"]) is types.ModuleType
    assert double(5) == 10 and package == ["heavy"]


def test_any_other_attribute_loads(package):
    import heavy

    assert heavy.SIZE == 7
    assert package == ["heavy"]
    with pytest.raises(AttributeError):
        _ = heavy.absent
    with pytest.raises(ImportError):
        from heavy import absent  # noqa: F401


def test_a_module_inside_loads_the_package_first(package):
    import heavy.part

    assert sys.modules["heavy"].LOADED == "heavy"
    assert heavy.part.FOUND == 7
    assert package == ["heavy"]
