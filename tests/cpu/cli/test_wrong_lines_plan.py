"""`snugfit plan` typed wrong: budgets, pins, bans, files; nothing is planned for what cannot be written."""

import pytest
from wrong_lines import check, wrong

LINES = [
    wrong("plan", "the following arguments are required", "see `snugfit plan --help`"),
    wrong("plan --budget 8GiB", "the following arguments are required", "see `snugfit plan --help`"),
    wrong(
        "plan model.py:build --image-size 8 --budget 10",
        "budget '10' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget '10 apples'",
        "budget '10 apples' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget -3GiB",
        "budget '-3GiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 0",
        "budget '0' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong("plan model.py:build --image-size 8 --budget 0GiB", "budget '0GiB' must be more than 0 bytes"),
    wrong("plan model.py:build --image-size 8 --budget 0.0000001KB", "budget '0.0000001KB' must be more than 0 bytes"),
    wrong(
        "plan model.py:build --image-size 8 --budget nanGiB",
        "budget 'nanGiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget infGiB",
        "budget 'infGiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 1e400GiB",
        "budget '1e400GiB' is more than any memory",
        "Give a smaller number",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 1e300TiB --device cpu",
        "budget '1e300TiB' is more than any memory",
        "Give a smaller number",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8,5GiB",
        "budget '8,5GiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8G",
        "budget '8G' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 80%",
        "budget '80%' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget ''",
        "budget '' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget GiB",
        "budget 'GiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --budget x",
        "budget 'x' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --device all",
        "a plan is for one device",
        "give --device a name of the table (snugfit devices), local",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --device l44",
        "device 'l44' is unknown",
        "did you mean 'l4-24gb'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --device local",
        "device 'local' is the CUDA GPU of this machine",
        "Name a card of the table (snugfit devices), or cpu",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --device cuda",
        "device 'cuda' is unknown",
        "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --host-budget lots",
        "host budget 'lots' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --host-budget -1GiB",
        "host budget '-1GiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --host-budget 0",
        "host budget '0' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --allow anything",
        "allow is 'anything'",
        "allowed: exact, rounding, different",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --allow rounding,diferent",
        "allow is 'diferent'",
        "did you mean 'different'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --allow",
        "--allow",
        "expected one argument",
        "see `snugfit plan --help`",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin checkpoint",
        "--pin 'checkpoint' is not understood",
        "give FIELD=VALUE, for example --pin checkpoint=none",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin chekpoint=none",
        "pins and bans of the plan",
        "did you mean 'checkpoint'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin =none",
        "--pin '=none' is not understood",
        "give FIELD=VALUE, for example --pin checkpoint=none",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin checkpoint=",
        "--pin 'checkpoint=' is not understood",
        "give FIELD=VALUE, for example --pin checkpoint=none",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin precision=fp64",
        "pins and bans of the plan",
        "did you mean 'fp32' (casts nothing: float64 stays float64)?",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin precision=fp32 --pin precision=bf16-mixed",
        "pins and bans of the plan",
        "give one of the two",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --pin precision=fp32 --precision bf16-mixed",
        "bf16-mixed",
        "pins and bans of the plan",
        "give one of the two",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --forbid chekpoint",
        "chekpoint",
        "pins and bans of the plan",
        "did you mean 'checkpoint'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --forbid checkpoint --pin checkpoint=all",
        "checkpoint",
        "pins and bans of the plan",
        "give one of the two",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --forbid checkpoint --checkpoint all",
        "all",
        "pins and bans of the plan",
        "give one of the two",
    ),
    wrong("plan model.py:build --image-size 8 --budget 8GiB --forbid ,", ",", "pins and bans of the plan: 2 problems"),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --forbid batch_size",
        "pins and bans of the plan",
        "did you mean 'microbatch_size'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --maximize speed",
        "--maximize is 'speed'",
        "give batch-size or seq-len",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --maximize batch_size",
        "--maximize is 'batch_size'",
        "give batch-size or seq-len",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --maximize batch-size --batch-size 0",
        "0",
        "training settings",
        "it must be at least 1",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB -o nowhere/recipe.yaml",
        "--output 'nowhere/recipe.yaml' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB -o empty_folder",
        "--output 'empty_folder' is a folder",
        "give the name of a file, such as empty_folder/output",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB -o /proc/nope.yaml",
        "--output '/proc/nope.yaml' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB -o model.py/recipe.yaml",
        "--output 'model.py/recipe.yaml' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong("plan model.py:build --image-size 8 --budget 8GiB -o ''", "-o/--output", "see `snugfit plan --help`"),
    wrong("plan model.py:build --image-size 8 --budget 8GiB -o", "-o/--output", "see `snugfit plan --help`"),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --figure f.pdf",
        "--figure 'f.pdf': the file's ending says the format: .png",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --figure nowhere/f.png",
        "--figure 'nowhere/f.png' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --figure /proc/nope.png",
        "--figure '/proc/nope.png' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --recipe broken.yaml",
        "recipe file 'broken.yaml'",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --recipe absent.yaml",
        "recipe file 'absent.yaml' cannot be read",
        "Give an existing file",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --recipe unknown.yaml",
        "recipe 'unknown.yaml'",
        "did you mean 'microbatch_size'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --recipe unreadable.yaml",
        "recipe file 'unreadable.yaml' cannot be read",
        "Give an existing file",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --bugdet 9GiB",
        "unknown option '--bugdet'",
        "did you mean '--budget'",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB --data digits",
        "unknown option '--data'",
        "see `snugfit plan --help`",
    ),
    wrong(
        "plan model.py:build --image-size 8 --budget 8GiB extra",
        "unexpected argument 'extra'",
        "see `snugfit plan --help`",
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
