"""`snugfit ladder` typed wrong: refused before anything is trained, or at its first rung, with nothing left behind."""

import pytest
from wrong_lines import check, every, within, wrong

LINES = [
    *within(
        "ladder {}",
        wrong("--data digits --device cpu", "MODEL must be given, or --preset with one of:"),
        wrong("--device cpu", "MODEL must be given, or --preset with one of:"),
        wrong("--json --device cpu", "MODEL must be given, or --preset with one of:"),
        wrong("--preset --device cpu", "--preset", "expected one argument", "see `snugfit ladder --help`"),
        wrong(
            "--preset llama-8b --batch-size 3 --device cpu",
            "--batch-size has no place beside --preset llama-8b",
            "Leave it out",
        ),
        wrong(
            "--preset llama-8b --estimate --card rtx4091 --device cpu",
            "cpu",
            "device 'rtx4091' is unknown",
            "did you mean 'rtx-4090'",
        ),
        *every(
            "--preset llama-8b --estimate --seq-len {} --device cpu",
            "0 x",
            "seq_len is '{}'",
            "it must be a whole number of at least 1",
        ),
        wrong("--preset llama-9b --device cpu", "preset 'llama-9b' is unknown", "did you mean 'llama-8b'"),
        wrong("model.py:bild --data digits --device cpu", "rung 1/8 fp32"),
        wrong("model.py:build --data --device cpu", "expected one argument", "see `snugfit ladder --help`"),
        wrong(
            "model.py:build --data digits --device cuda",
            "device 'cuda' is not there",
            "Use --device cpu, or leave it out",
        ),
        wrong("model.py:build --data digits --device gpu", "gpu", "--device", "see `snugfit ladder --help`"),
        wrong("model.py:build --device cpu", "--data must be given, for example `snugfit ladder"),
        wrong(
            "model.py:build --estimate --card nonesuch --device cpu",
            "cpu",
            "device 'nonesuch' is unknown",
            "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,",
        ),
        wrong("model.py:raises --estimate --image-size 8", "model.py:raises", "rung 1/8 fp32"),
    ),
    *within(
        "ladder model.py:build --data digits {} --device cpu",
        *every("--batch-size {}", "-1 0", "batch_size is {}", "it must be at least 1"),
        wrong("--batch-size many", "batch_size is 'many'", "it takes a whole number"),
        wrong("--card l4", "--card is for --estimate", "a run takes --device"),
        wrong("--epoch 3", "unknown option '--epoch'", "did you mean '--epochs'"),
        wrong("--epochs 0", "epochs is 0", "it must be at least 1"),
        wrong("--epochs two", "epochs is 'two'", "it takes a whole number"),
        *every("--image-size {}", "0 x", "image_size is '{}'", "it must be a whole number of at least 1"),
        wrong("--lr -1", "lr is -1.0", "it must be a finite number of at least 0"),
        wrong("--lr fast", "lr is 'fast'", "it takes a number"),
        wrong("--lr nan", "lr is nan", "it must be a finite number of at least 0"),
        wrong("--lr-schedule step", "lr_schedule is 'step'", "allowed: constant, cosine, linear"),
        wrong("--max-steps 0", "max_steps is 0", "it must be at least 1"),
        wrong("--out ''", "--out", "'' names no file or folder", "see `snugfit ladder --help`"),
        *every("--out {}", "/proc/ladder model.py model.py/ladder", "{} cannot be written", "Give another --out"),
        wrong("--precision fp32", "unknown option '--precision'", "see `snugfit ladder --help`"),
        wrong("--preset llama-8b", "MODEL has no place beside --preset llama-8b", "Leave it out"),
        *every("--rungs {}", "'' ,", "no rung is chosen", "Give some of: fp32, bf16-mixed, bf16-true, batch-16,"),
        wrong("--rungs fp23", "rung 'fp23' is unknown", "did you mean 'fp32'"),
        *every("--samples {}", "-3 0 1.5", "samples is '{}'", "it must be a whole number of at least 1"),
        wrong("--seed -1", "seed is -1", "it must be a finite number of at least 0"),
        wrong("--sgd-lr fast", "sgd_lr is 'fast'", "it takes a number"),
        wrong("extra", "unexpected argument 'extra'", "see `snugfit ladder --help`"),
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
