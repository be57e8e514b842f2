"""`snugfit plan` typed wrong: budgets, pins, bans, files; nothing is planned for what cannot be written."""

import pytest
from wrong_lines import check, every, within, wrong

LINES = [
    wrong("plan", "the following arguments are required", "see `snugfit plan --help`"),
    wrong("plan --budget 8GiB", "the following arguments are required", "see `snugfit plan --help`"),
    *within(
        "plan model.py:build --image-size 8 {}",
        *every(
            "--budget {}",
            "10 '10 apples' -3GiB 0 nanGiB infGiB 8,5GiB 8G 80% '' GiB",
            "budget '{}' is not understood",
            "Give a number with a unit: B, KB, MB, GB, TB (powers of",
        ),
        *every("--budget {}", "0GiB 0.0000001KB", "budget '{}' must be more than 0 bytes"),
        wrong("--budget 1e400GiB", "budget '1e400GiB' is more than any memory", "Give a smaller number"),
        wrong("--budget 1e300TiB --device cpu", "budget '1e300TiB' is more than any memory", "Give a smaller number"),
    ),
    *within(
        "plan model.py:build --image-size 8 --budget 8GiB {}",
        wrong("--budget x", "budget 'x' is not understood", "Give a number with a unit: B, KB, MB, GB, TB (powers of"),
        wrong("--device all", "a plan is for one device", "give --device a name of the table (snugfit devices), local"),
        wrong("--device l44", "device 'l44' is unknown", "did you mean 'l4-24gb'"),
        wrong(
            "--device local",
            "device 'local' is the CUDA GPU of this machine",
            "Name a card of the table (snugfit devices), or cpu",
        ),
        wrong(
            "--device cuda", "device 'cuda' is unknown", "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,"
        ),
        *every(
            "--host-budget {}",
            "lots -1GiB 0",
            "host budget '{}' is not understood",
            "Give a number with a unit: B, KB, MB, GB, TB (powers of",
        ),
        wrong("--allow anything", "allow is 'anything'", "allowed: exact, rounding, different"),
        wrong("--allow rounding,diferent", "allow is 'diferent'", "did you mean 'different'"),
        wrong("--allow", "--allow", "expected one argument", "see `snugfit plan --help`"),
        wrong(
            "--pin checkpoint",
            "--pin 'checkpoint' is not understood",
            "give FIELD=VALUE, for example --pin checkpoint=none",
        ),
        wrong("--pin chekpoint=none", "pins and bans of the plan", "did you mean 'checkpoint'"),
        *every(
            "--pin {}",
            "=none checkpoint=",
            "--pin '{}' is not understood",
            "give FIELD=VALUE, for example --pin checkpoint=none",
        ),
        wrong(
            "--pin precision=fp64",
            "pins and bans of the plan",
            "did you mean 'fp32' (casts nothing: float64 stays float64)?",
        ),
        wrong("--pin precision=fp32 --pin precision=bf16-mixed", "pins and bans of the plan", "give one of the two"),
        wrong(
            "--pin precision=fp32 --precision bf16-mixed",
            "bf16-mixed",
            "pins and bans of the plan",
            "give one of the two",
        ),
        wrong("--forbid chekpoint", "chekpoint", "pins and bans of the plan", "did you mean 'checkpoint'"),
        wrong(
            "--forbid checkpoint --pin checkpoint=all", "checkpoint", "pins and bans of the plan", "give one of the two"
        ),
        wrong("--forbid checkpoint --checkpoint all", "all", "pins and bans of the plan", "give one of the two"),
        wrong("--forbid ,", ",", "pins and bans of the plan: 2 problems"),
        wrong("--forbid batch_size", "pins and bans of the plan", "did you mean 'microbatch_size'"),
        *every("--maximize {}", "speed batch_size", "--maximize is '{}'", "give batch-size or seq-len"),
        *every("--minimize {}", "memory GPUS", "--minimize is '{}'", "give gpus"),
        wrong("--minimize gpus --gpus 4", "--minimize gpus finds their number", "leave --gpus 4 out"),
        wrong("--minimize gpus --maximize batch-size", "--maximize is for GPUs whose number is given"),
        wrong("--maximize batch-size --batch-size 0", "0", "training settings", "it must be at least 1"),
        *every(
            "-o {}",
            "nowhere/recipe.yaml /proc/nope.yaml model.py/recipe.yaml",
            "--output '{}' cannot be written",
            "Give a file in a folder that exists and can be written to",
        ),
        wrong(
            "-o empty_folder",
            "--output 'empty_folder' is a folder",
            "give the name of a file, such as empty_folder/output",
        ),
        wrong("-o ''", "-o/--output", "see `snugfit plan --help`"),
        wrong("-o", "-o/--output", "see `snugfit plan --help`"),
        wrong("--figure f.pdf", "--figure 'f.pdf': the file's ending says the format: .png"),
        *every(
            "--figure {}",
            "nowhere/f.png /proc/nope.png",
            "--figure '{}' cannot be written",
            "Give a file in a folder that exists and can be written to",
        ),
        wrong(
            "--recipe broken.yaml",
            "recipe file 'broken.yaml'",
            "Write `field: value` lines, for example `checkpoint: all`",
        ),
        *every(
            "--recipe {}", "absent.yaml unreadable.yaml", "recipe file '{}' cannot be read", "Give an existing file"
        ),
        wrong("--recipe unknown.yaml", "recipe 'unknown.yaml'", "did you mean 'microbatch_size'"),
        wrong("--bugdet 9GiB", "unknown option '--bugdet'", "did you mean '--budget'"),
        wrong("--data digits", "unknown option '--data'", "see `snugfit plan --help`"),
        wrong("extra", "unexpected argument 'extra'", "see `snugfit plan --help`"),
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
