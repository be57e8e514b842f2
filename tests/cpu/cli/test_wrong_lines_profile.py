"""`snugfit profile` typed wrong: scripts that are none, files that cannot be written."""

import pytest
from wrong_lines import check, every, wrong

LINES = [
    wrong("profile", "the following arguments are required", "see `snugfit profile --help`"),
    wrong("profile --json", "the following arguments are required", "see `snugfit profile --help`"),
    *every(
        "profile {}",
        "absent.py dangling.py loop.py model.py:build torchvision:resnet18",
        "script '{}' does not exist",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong(
        "profile empty_folder",
        "script 'empty_folder' is a folder",
        "Give the path of a Python file, then its own arguments",
    ),
    wrong("profile ''", "script '' names no file", "Give the path of a Python file, then its own arguments"),
    wrong(
        "profile unreadable.py",
        "script 'unreadable.py' cannot be read",
        "Give the path of a Python file, then its own arguments",
    ),
    *every("profile {}", "syntax.py latin.py tabs.py pickled.pt broken.yaml", "script '{}'", "nothing was run"),
    wrong("profile nulls.py", "script 'nulls.py' is no Python", "nothing was run"),
    *every(
        "profile --steps {} printing.py",
        "0 -1 99999999999999999999999",
        "{} is out of range",
        "see `snugfit profile --help`",
    ),
    wrong("profile --steps x printing.py", "'x' is no whole number", "see `snugfit profile --help`"),
    wrong("profile --steps", "--steps", "expected one argument", "see `snugfit profile --help`"),
    wrong("profile --step 3 printing.py", "unknown option '--step'", "did you mean '--steps'"),
    *every(
        "profile --timeline {} printing.py",
        "t.txt empty_folder",
        "--timeline '{}': the file's ending says the format: .html or .png",
    ),
    *every(
        "profile --timeline {} printing.py",
        "nowhere/t.html /proc/t.html",
        "--timeline '{}' cannot be written",
        "Give a file in a folder that exists and can be written to",
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
