"""`snugfit ladder` typed wrong: refused before anything is trained, or at its first rung, with nothing left behind."""

import pytest
from wrong_lines import check, wrong

LINES = [
    wrong("ladder --data digits --device cpu", "MODEL must be given, or --preset with one of:"),
    wrong("ladder --device cpu", "MODEL must be given, or --preset with one of:"),
    wrong("ladder --json --device cpu", "MODEL must be given, or --preset with one of:"),
    wrong("ladder --preset --device cpu", "--preset", "expected one argument", "see `snugfit ladder --help`"),
    wrong(
        "ladder --preset llama-8b --batch-size 3 --device cpu",
        "--batch-size has no place beside --preset llama-8b",
        "Leave it out",
    ),
    wrong(
        "ladder --preset llama-8b --estimate --card rtx4091 --device cpu",
        "cpu",
        "device 'rtx4091' is unknown",
        "did you mean 'rtx-4090'",
    ),
    wrong(
        "ladder --preset llama-8b --estimate --seq-len 0 --device cpu",
        "seq_len is '0'",
        "it must be a whole number of at least 1",
    ),
    wrong(
        "ladder --preset llama-8b --estimate --seq-len x --device cpu",
        "seq_len is 'x'",
        "it must be a whole number of at least 1",
    ),
    wrong("ladder --preset llama-9b --device cpu", "preset 'llama-9b' is unknown", "did you mean 'llama-8b'"),
    wrong("ladder model.py:bild --data digits --device cpu", "rung 1/8 fp32"),
    wrong("ladder model.py:build --data --device cpu", "expected one argument", "see `snugfit ladder --help`"),
    wrong(
        "ladder model.py:build --data digits --batch-size -1 --device cpu", "batch_size is -1", "it must be at least 1"
    ),
    wrong(
        "ladder model.py:build --data digits --batch-size 0 --device cpu", "batch_size is 0", "it must be at least 1"
    ),
    wrong(
        "ladder model.py:build --data digits --batch-size many --device cpu",
        "batch_size is 'many'",
        "it takes a whole number",
    ),
    wrong(
        "ladder model.py:build --data digits --card l4 --device cpu", "--card is for --estimate", "a run takes --device"
    ),
    wrong(
        "ladder model.py:build --data digits --device cuda",
        "device 'cuda' is not there",
        "Use --device cpu, or leave it out",
    ),
    wrong("ladder model.py:build --data digits --device gpu", "gpu", "--device", "see `snugfit ladder --help`"),
    wrong(
        "ladder model.py:build --data digits --epoch 3 --device cpu",
        "unknown option '--epoch'",
        "did you mean '--epochs'",
    ),
    wrong("ladder model.py:build --data digits --epochs 0 --device cpu", "epochs is 0", "it must be at least 1"),
    wrong(
        "ladder model.py:build --data digits --epochs two --device cpu", "epochs is 'two'", "it takes a whole number"
    ),
    wrong(
        "ladder model.py:build --data digits --image-size 0 --device cpu",
        "image_size is '0'",
        "it must be a whole number of at least 1",
    ),
    wrong(
        "ladder model.py:build --data digits --image-size x --device cpu",
        "image_size is 'x'",
        "it must be a whole number of at least 1",
    ),
    wrong(
        "ladder model.py:build --data digits --lr -1 --device cpu",
        "lr is -1.0",
        "it must be a finite number of at least 0",
    ),
    wrong("ladder model.py:build --data digits --lr fast --device cpu", "lr is 'fast'", "it takes a number"),
    wrong(
        "ladder model.py:build --data digits --lr nan --device cpu",
        "lr is nan",
        "it must be a finite number of at least 0",
    ),
    wrong(
        "ladder model.py:build --data digits --lr-schedule step --device cpu",
        "lr_schedule is 'step'",
        "allowed: constant, cosine, linear",
    ),
    wrong("ladder model.py:build --data digits --max-steps 0 --device cpu", "max_steps is 0", "it must be at least 1"),
    wrong(
        "ladder model.py:build --data digits --out '' --device cpu",
        "--out",
        "'' names no file or folder",
        "see `snugfit ladder --help`",
    ),
    wrong(
        "ladder model.py:build --data digits --out /proc/ladder --device cpu",
        "/proc/ladder cannot be written",
        "Give another --out",
    ),
    wrong(
        "ladder model.py:build --data digits --out model.py --device cpu",
        "model.py cannot be written",
        "Give another --out",
    ),
    wrong(
        "ladder model.py:build --data digits --out model.py/ladder --device cpu",
        "model.py/ladder cannot be written",
        "Give another --out",
    ),
    wrong(
        "ladder model.py:build --data digits --precision fp32 --device cpu",
        "unknown option '--precision'",
        "see `snugfit ladder --help`",
    ),
    wrong(
        "ladder model.py:build --data digits --preset llama-8b --device cpu",
        "MODEL has no place beside --preset llama-8b",
        "Leave it out",
    ),
    wrong(
        "ladder model.py:build --data digits --rungs '' --device cpu",
        "no rung is chosen",
        "Give some of: fp32, bf16-mixed, bf16-true, batch-16,",
    ),
    wrong(
        "ladder model.py:build --data digits --rungs , --device cpu",
        "no rung is chosen",
        "Give some of: fp32, bf16-mixed, bf16-true, batch-16,",
    ),
    wrong(
        "ladder model.py:build --data digits --rungs fp23 --device cpu", "rung 'fp23' is unknown", "did you mean 'fp32'"
    ),
    wrong(
        "ladder model.py:build --data digits --samples -3 --device cpu",
        "samples is '-3'",
        "it must be a whole number of at least 1",
    ),
    wrong(
        "ladder model.py:build --data digits --samples 0 --device cpu",
        "samples is '0'",
        "it must be a whole number of at least 1",
    ),
    wrong(
        "ladder model.py:build --data digits --samples 1.5 --device cpu",
        "samples is '1.5'",
        "it must be a whole number of at least 1",
    ),
    wrong(
        "ladder model.py:build --data digits --seed -1 --device cpu",
        "seed is -1",
        "it must be a finite number of at least 0",
    ),
    wrong("ladder model.py:build --data digits --sgd-lr fast --device cpu", "sgd_lr is 'fast'", "it takes a number"),
    wrong(
        "ladder model.py:build --data digits extra --device cpu",
        "unexpected argument 'extra'",
        "see `snugfit ladder --help`",
    ),
    wrong("ladder model.py:build --device cpu", "--data must be given, for example `snugfit ladder"),
    wrong(
        "ladder model.py:build --estimate --card nonesuch --device cpu",
        "cpu",
        "device 'nonesuch' is unknown",
        "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,",
    ),
    wrong("ladder model.py:raises --estimate --image-size 8", "model.py:raises", "rung 1/8 fp32"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
