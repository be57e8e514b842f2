"""`snugfit`, `snugfit devices` and `snugfit techniques` typed wrong."""

import pytest
from wrong_lines import check, every, wrong

LINES = [
    wrong("trian", "unknown command 'trian'", "See `snugfit --help`"),
    wrong("--", "the following arguments are required", "see `snugfit --help`"),
    wrong("--verison", "unknown option '--verison'", "did you mean '--version'"),
    wrong("-x", "unknown option '-x'", "see `snugfit --help`"),
    wrong("''", "unknown command ''", "See `snugfit --help`"),
    wrong("train:", "unknown command 'train:'", "See `snugfit --help`"),
    wrong("Estimate", "unknown command 'Estimate'", "See `snugfit --help`"),
    wrong("help", "unknown command 'help'", "See `snugfit --help`"),
    wrong("--json", "option '--json' needs a command before it", "see `snugfit --help`"),
    wrong("devices extra", "device 'extra' is unknown", "allowed: "),
    wrong("devices --json cpu extra", "unexpected argument 'extra'", "see `snugfit devices --help`"),
    wrong("devices --jsn", "unknown option '--jsn'", "did you mean '--json'"),
    wrong("devices --json=yes", "ignored explicit argument 'yes'", "see `snugfit devices --help`"),
    wrong("devices rtx-409", "device 'rtx-409' is unknown", "did you mean 'rtx-4090'"),
    wrong("devices local", "device 'local' is the CUDA GPU of this machine", "Name a card of the table"),
    wrong("calibrate --device rtx-4090", "device 'rtx-4090' cannot be measured", "give cpu or cuda"),
    wrong("calibrate --device rehearse:rtx-4090", "its bytes are real, its seconds are not", "Give cpu or cuda"),
    wrong("calibrate --device cuda", "device 'cuda' is not there", "--device cpu"),
    wrong("calibrate now", "unexpected argument 'now'", "see `snugfit calibrate --help`"),
    wrong("verify --image-size 32", "--image-size is for a MODEL of yours", "none is named"),
    wrong("verify --batch-size 0", "0 is out of range", "see `snugfit verify --help`"),
    wrong("verify --out nowhere/rows.jsonl", "cannot be written", "Give a file in a folder"),
    wrong("verify torchvision:resnet18 --device xpu", "device 'xpu' cannot be measured", "give cpu or cuda"),
    wrong("devices -j", "unknown option '-j'", "see `snugfit devices --help`"),
    wrong("techniques lorra", "technique 'lorra' is unknown", "did you mean 'lora'"),
    wrong("techniques lora qlora", "unexpected argument 'qlora'", "see `snugfit techniques --help`"),
    *every(
        "techniques {}",
        "'' ../recipe 1 café",
        "technique '{}' is unknown",
        "allowed: mixed_precision, true_precision, tf32, microbatch,",
    ),
    wrong(
        "techniques 'gradient chekpointing'",
        "technique 'gradient chekpointing' is unknown",
        "did you mean 'gradient-checkpointing'",
    ),
    wrong(
        "techniques --json nonesuch",
        "technique 'nonesuch' is unknown",
        "allowed: mixed_precision, true_precision, tf32, microbatch,",
    ),
    wrong(
        "techniques flash-attention-3", "technique 'flash-attention-3' is unknown", "did you mean 'flash-attention-2'"
    ),
    wrong("techniques __init__", "technique '__init__' is unknown", "did you mean 'init'"),
    wrong("techniques --name lora", "unknown option '--name'", "see `snugfit techniques --help`"),
    wrong("techniques --all", "unknown option '--all'", "see `snugfit techniques --help`"),
    wrong("techniques gpipe", "technique 'gpipe'", "The nearest that is here: `snugfit techniques"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
