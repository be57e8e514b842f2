"""A script runs as Python runs it: its argv, its `__main__`, its folder; its exit code and its own traceback."""

import sys

import pytest

from snugfit.errors import InputError
from snugfit.simulator.script import EnoughSeen, Program, check_script, run_script


def run(path, text, *arguments):
    script = path / "script.py"
    script.write_text(text)
    ended = []
    code = run_script(Program(script), arguments, before_exit=lambda: ended.append(True))
    assert ended == [True]
    return code


def test_argv_main_and_folder(tmp_path, capsys):
    (tmp_path / "neighbour_of_script.py").write_text("value = 17")
    before = list(sys.argv), list(sys.path)
    text = (
        "import sys\nfrom neighbour_of_script import value\nif __name__ == '__main__':\n    print(sys.argv[1:], value)"
    )
    assert run(tmp_path, text, "--lr", "0.1") == 0
    assert capsys.readouterr().out == "['--lr', '0.1'] 17\n"
    assert (sys.argv, sys.path) == before
    del sys.modules["neighbour_of_script"]


@pytest.mark.parametrize(
    "end, code",
    [
        ("pass", 0),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit('no data')", 1),
        ("raise KeyboardInterrupt", 130),
        ("1 / 0", 1),
        ("def", 1),
    ],
)
def test_exit_codes_are_those_of_python(tmp_path, capsys, end, code):
    assert run(tmp_path, end) == code
    assert ("no data" in capsys.readouterr().err) == ("no data" in end)


def test_the_traceback_begins_in_the_script(tmp_path, capsys):
    assert run(tmp_path, "def inner():\n    raise RuntimeError('broken')\ninner()") == 1
    text = capsys.readouterr().err
    assert "RuntimeError: broken" in text and "script.py" in text
    assert "runpy" not in text and "profile_script" not in text


def test_a_script_cannot_catch_its_end_but_cleans_up(tmp_path, capsys):
    text = (
        "from snugfit.simulator.script import EnoughSeen\n"
        "try:\n    raise EnoughSeen\nexcept Exception:\n    print('caught')\nfinally:\n    print('cleaned')\n"
    )
    assert run(tmp_path, text) == 0
    assert capsys.readouterr().out == "cleaned\n"
    assert not issubclass(EnoughSeen, Exception)


def test_a_module_runs_as_python_runs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "of_own" / "inner"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "part.py").write_text("value = 17")
    (package / "train.py").write_text("import sys\nfrom .part import value\nprint(__name__, value, sys.argv[1:])")
    (package / "__main__.py").write_text("from .train import value\nprint(__spec__.name, sys.path[0] and value)")
    program = check_script("-m of_own.inner.train")
    assert (program.path, program.module) == (package / "train.py", "of_own.inner.train")
    assert run_script(program, ["--lr"], before_exit=lambda: None) == 0
    assert capsys.readouterr().out == "__main__ 17 ['--lr']\n"
    assert check_script("-m of_own.inner").module == "of_own.inner.__main__"
    for name in list(sys.modules):
        if name.startswith("of_own"):
            del sys.modules[name]


@pytest.mark.parametrize("name", ["nothing_like_it", "os.nothing", "email.", ".train"])
def test_a_module_that_is_not_there_is_refused(name):
    with pytest.raises(InputError, match=f"module '{name}' is not found"):
        check_script(f"-m {name}")


@pytest.mark.parametrize("name, why", [("nothing.py", "does not exist"), (".", "is a folder")])
def test_what_is_no_script_is_refused(tmp_path, monkeypatch, name, why):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=why):
        check_script(name)
