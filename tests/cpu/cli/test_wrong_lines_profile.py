"""`snugfit profile` typed wrong: scripts that are none, files that cannot be written."""

import pytest
from wrong_lines import check, wrong

LINES = [
    wrong("profile", "the following arguments are required", "see `snugfit profile --help`"),
    wrong("profile --json", "the following arguments are required", "see `snugfit profile --help`"),
    wrong(
        "profile absent.py",
        "script 'absent.py' does not exist",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong(
        "profile empty_folder",
        "script 'empty_folder' is a folder",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong("profile ''", "script '' names no file", "Give the path of a Python file, then its own arguments"),
    wrong(
        "profile dangling.py",
        "script 'dangling.py' does not exist",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong(
        "profile loop.py", "script 'loop.py' does not exist", "Give the path of a Python file, then its own arguments"
    ),
    wrong(
        "profile unreadable.py",
        "script 'unreadable.py' cannot be read",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong("profile syntax.py", "script 'syntax.py'", "nothing was run"),
    wrong("profile latin.py", "script 'latin.py'", "nothing was run"),
    wrong("profile nulls.py", "script 'nulls.py' is no Python", "nothing was run"),
    wrong("profile tabs.py", "script 'tabs.py'", "nothing was run"),
    wrong("profile pickled.pt", "script 'pickled.pt'", "nothing was run"),
    wrong("profile broken.yaml", "script 'broken.yaml'", "nothing was run"),
    wrong("profile --steps 0 printing.py", "0 is out of range", "see `snugfit profile --help`"),
    wrong("profile --steps -1 printing.py", "-1 is out of range", "see `snugfit profile --help`"),
    wrong("profile --steps x printing.py", "'x' is no whole number", "see `snugfit profile --help`"),
    wrong(
        "profile --steps 99999999999999999999999 printing.py",
        "99999999999999999999999 is out of range",
        "see `snugfit profile --help`",
    ),
    wrong("profile --steps", "--steps", "expected one argument", "see `snugfit profile --help`"),
    wrong("profile --step 3 printing.py", "unknown option '--step'", "did you mean '--steps'"),
    wrong(
        "profile --timeline t.txt printing.py", "--timeline 't.txt': the file's ending says the format: .html or .png"
    ),
    wrong(
        "profile --timeline nowhere/t.html printing.py",
        "--timeline 'nowhere/t.html' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "profile --timeline /proc/t.html printing.py",
        "--timeline '/proc/t.html' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "profile --timeline empty_folder printing.py",
        "--timeline 'empty_folder': the file's ending says the format: .html or .png",
    ),
    wrong(
        "profile --snapshot nowhere/s.pickle printing.py",
        "--snapshot 'nowhere/s.pickle' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "profile --snapshot empty_folder printing.py",
        "--snapshot 'empty_folder' is a folder",
        "give the name of a file, such as empty_folder/snapshot",
    ),
    wrong(
        "profile --snapshot '' printing.py", "--snapshot", "'' names no file or folder", "see `snugfit profile --help`"
    ),
    wrong("profile --device l4 printing.py", "unknown option '--device'", "see `snugfit profile --help`"),
    wrong("profile --batch-size 4 printing.py", "unknown option '--batch-size'", "see `snugfit profile --help`"),
    wrong(
        "profile model.py:build",
        "script 'model.py:build' does not exist",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong(
        "profile torchvision:resnet18",
        "script 'torchvision:resnet18' does not exist",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong("profile --stop=1 printing.py", "ignored explicit argument '1'", "see `snugfit profile --help`"),
    wrong(
        "profile python printing.py",
        "script 'python' does not exist",
        "Give the path of a Python file, then its own arguments",
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
