"""A notebook is estimated, planned and profiled as it is, and its lines are told by cell."""

import json

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

from snugfit.cli import main
from snugfit.errors import InputError
from snugfit.simulator.script import check_script, run_script
from snugfit.simulator.script_text import ProgramText

COLAB = """
!pip install -q timm
%matplotlib inline
%env SIZE 64
import os
from google.colab import drive, userdata
from kaggle_secrets import UserSecretsClient
drive.mount('/content/drive')
os.environ["HF_TOKEN"] = userdata.get("HF_TOKEN") + UserSecretsClient().get_secret("HF_TOKEN")
size = int(os.environ["SIZE"])
files = !ls
display(files)
"""
SHOWN = "images = torch.randn(64, 3, 32, 32, device=device)\nmodel(images)"


def notebook(folder, *cells, name="train.ipynb"):
    """A notebook of these cells, with one of prose between each two."""
    rows = [row for cell in cells for row in ({"cell_type": "markdown", "source": "prose"}, _code(cell))]
    (folder / name).write_text(json.dumps({"cells": rows, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}))
    return folder / name


def _code(text):
    return {"cell_type": "code", "source": text.splitlines(keepends=True), "outputs": [], "metadata": {}}


def test_it_takes_what_the_same_script_takes_and_lines_are_told_by_cell(tmp_path, capsys):
    timed = "%%time\n" + LOOP.replace("batch_size=64", "batch_size=size")
    _, found, err = estimated(capsys, notebook(tmp_path, COLAB, "", TRAINS, timed))
    assert found is not None, err
    _, plain, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP, "plain.py"))
    assert found["peak_allocated_bytes"] == plain["peak_allocated_bytes"]
    lines = {row["line"].rpartition("/")[2]: row["code"] for row in found["sources"] if row["line"]}
    assert {line.rpartition(":")[0] for line in lines} <= {"train.ipynb[cell 2]", "train.ipynb[cell 3]"}
    assert {
        line: (TRAINS, timed)[int(line[17]) - 2].splitlines()[int(line[20:]) - 1].strip() for line in lines
    } == lines


def test_what_a_cell_shows_stays_in_memory(tmp_path, capsys):
    def peak(cell):
        _, found, err = estimated(capsys, notebook(tmp_path, TRAINS, cell, LOOP))
        assert found is not None, err
        return found["peak_allocated_bytes"]

    assert peak(SHOWN) == peak(SHOWN.replace("model(images)", "shown = model(images)")) > peak(f"{SHOWN};")


AGAIN = "other = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)\n" + LOOP.replace("optimizer", "other")


def test_cells_behind_the_training_are_looked_at(tmp_path, capsys):
    tests = "with torch.no_grad():\n    shown = model(torch.randn(2**18, 32, device=device)).sum()\n    del shown"
    _, alone, err = estimated(capsys, notebook(tmp_path, TRAINS, LOOP, name="alone.ipynb"))
    assert alone is not None and "behind" not in err, err
    _, found, err = estimated(capsys, notebook(tmp_path, TRAINS, LOOP, "\n", "print(missing)", AGAIN, tests))
    assert found is not None, err
    assert found["peak_allocated_bytes"] > 2**18 * 32 * 4 > alone["peak_allocated_bytes"]
    assert "train.ipynb[cell 3] failed behind a training that was ended early (NameError" in err
    assert "another optimizer" not in err


def test_what_follows_in_the_cell_of_the_training_is_told(tmp_path, capsys):
    behind = f"{LOOP}\nwith torch.no_grad():\n    model(torch.randn(4, 32, device=device))"
    _, found, err = estimated(capsys, notebook(tmp_path, TRAINS, behind, "model(images)"))
    line = behind.splitlines().index("with torch.no_grad():") + 1
    assert found is not None and f"train.ipynb does from line {line} of cell 2 on, behind its training" in err


def test_a_plan_puts_its_lines_into_a_cell(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path, f"%%time\n{TRAINS}", LOOP)
    code = main(["plan", "--device", "rtx-4090", "--budget", "20GiB", "train.ipynb"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "To paste (into the cells by hand)" in out and "+++ train.ipynb[cell 1]\n" in out and "fused=True" in out


def test_it_runs_in_its_folder_up_to_its_error(tmp_path, capsys, monkeypatch):
    (tmp_path / "value.txt").write_text("17")
    program = check_script(
        str(
            notebook(
                tmp_path, "print(open('value.txt').read(), __name__)", "def fails():\n    return missing", "\nfails()"
            )
        )
    )
    ended = []
    assert run_script(program, [], before_exit=lambda: ended.append(True)) == 1
    out, err = capsys.readouterr()
    assert out == "17 __main__\n" and ended == [True]
    assert 'train.ipynb[cell 3]", line 2, in <module>\n    fails()\n' in err
    assert 'train.ipynb[cell 2]", line 2, in fails\n    return missing\n' in err and "script.py" not in err


MAGICS = """
%%writefile made_by_a_cell.py
from torch import nn
def net(): return nn.Linear(32, 4)
"""
RUN = """
%run -i helper.py --width 64
from made_by_a_cell import net
import asyncio
await asyncio.sleep(0)
%timeit -n 3 -r1 net()
assert Out == {1: 7} and _1 == _ == 7 and "seven" in In[1]
from google.colab import files
for name in files.upload():
    print(name)
"""


def test_what_magics_do_is_done_without_a_trace(tmp_path, capsys):
    (tmp_path / "helper.py").write_text("import sys\nassert sys.argv == ['helper.py', '--width', '64']\nsize = 64\n")
    (tmp_path / "made_by_a_cell.py").write_text("raise ImportError('of before')\n")
    keeps = "%%capture told\nprint('told')"
    loop = LOOP.replace("batch_size=64", "batch_size=size")
    cells = ("7  # seven", MAGICS, RUN, keeps, "print(told.stdout)", TRAINS, loop)
    _, found, err = estimated(capsys, notebook(tmp_path, *cells))
    assert found is not None, err
    _, plain, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP, "plain.py"))
    assert found["peak_allocated_bytes"] == plain["peak_allocated_bytes"]
    assert (tmp_path / "made_by_a_cell.py").read_text() == "raise ImportError('of before')\n"


def test_a_new_module_of_a_cell_is_there_for_those_behind_it(tmp_path, capsys):
    uses = TRAINS.replace("optimizer = ", "from made_by_a_cell import net\nhead = net().to(device)\noptimizer = ")
    _, found, err = estimated(capsys, notebook(tmp_path, MAGICS, uses, LOOP))
    assert found is not None, err
    assert [path.name for path in tmp_path.iterdir()] == ["train.ipynb"]


def test_a_notebook_without_a_step_is_told_of_shells(tmp_path, capsys):
    code, _, err = estimated(capsys, notebook(tmp_path, "!python train.py"))
    assert code == 2 and "give that script" in err.splitlines()[-1]


def test_a_cell_that_failed_when_the_notebook_was_saved_may_fail_again(tmp_path, capsys):
    path = notebook(tmp_path, "print(1 / 0)", "print('typo", "print('goes on')", "print([][0])")
    saved = json.loads(path.read_text())
    for cell in saved["cells"]:
        name = "SyntaxError" if "typo" in cell["source"][0] else "ArithmeticError"
        cell["outputs"] = [{"output_type": "error", "ename": name, "evalue": "", "traceback": []}]
    path.write_text(json.dumps(saved))
    assert run_script(check_script(str(path)), [], before_exit=lambda: None) == 1
    out, err = capsys.readouterr()
    assert "cell 1] ended with ZeroDivisionError, as it did before" in out and "goes on" in out
    assert "IndexError" in err and "ZeroDivisionError" not in err


@pytest.mark.parametrize(
    "text, said",
    [
        ("{}", "no notebook of format 4"),
        ("no json", "no notebook of format 4"),
        ('{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}', "is written in R"),
        ('{"worksheets": [{"cells": []}]}', "no notebook of format 4"),
        ('{"cells": [{"cell_type": "code", "source": []}]}', "has no code"),
        (
            '{"cells": [{"cell_type": "code", "source": "x = 1"}, {"cell_type": "code", "source": "\\ndef f(:"}]}',
            "2]:2 is no",
        ),
    ],
)
def test_what_is_no_notebook_is_told(tmp_path, text, said):
    (tmp_path / "train.ipynb").write_text(text)
    with pytest.raises(InputError, match=r"train\.ipynb") as error:
        check_script(str(tmp_path / "train.ipynb"))
    assert said in str(error.value)


def test_lines_of_several_parts_are_numbers_of_one_text():
    text = ProgramText({"a.ipynb[cell 1]": b"x\ny", "a.ipynb[cell 2]": b"z\n"})
    assert text.text == "x\ny\nz\n\n"
    places = [("a.ipynb[cell 1]", 2), ("other.py", 1), ("a.ipynb[cell 2]", 1)]
    assert text.numbers(places) == [2, 3]
    assert [text.file_line(number) for number in (2, 3)] == ["a.ipynb[cell 1]:2", "a.ipynb[cell 2]:1"]
    assert [text.place(number) for number in (2, 3)] == ["line 2 of cell 1", "line 1 of cell 2"]
    assert ProgramText({"a.py": b"x\ny\n"}).place(2) == "line 2"
