"""`snugfit export` typed wrong: one message, exit code 2."""

import pytest
from wrong_lines import check, wrong

GOOD = "empty.yaml --to deepspeed"
LINES = [
    wrong("export", "the following arguments are required: RECIPE", "see `snugfit export --help`"),
    wrong("export --to", "--to", "expected one argument", "see `snugfit export --help`"),
    wrong("export --to deepspeed", "the following arguments are required: RECIPE"),
    wrong("export empty.yaml", "--to must be given", "deepspeed"),
    wrong("export empty.yaml --to deepsped", "--to is 'deepsped'", "did you mean 'deepspeed'"),
    wrong("export empty.yaml --to ''", "--to is ''", "deepspeed"),
    wrong("export nowhere.yaml --to deepspeed", "nowhere.yaml", "cannot be read", "Give an existing file"),
    wrong("export nowhere.json --to deepspeed", "nowhere.json", "cannot be read", "Give an existing file"),
    wrong("export list/config.json --to deepspeed", "holds no recipe", "snugfit plan --json"),
    wrong("export cut/config.json --to deepspeed", "is not JSON", "snugfit plan --json"),
    wrong("export llama/config.json --to deepspeed", "model_type"),
    wrong("export llama --to deepspeed", "'llama' is a folder without a run in it", "Give a run directory"),
    wrong("export unknown.yaml --to deepspeed", "batch_size"),
    wrong("export types.yaml --to deepspeed", "3 problems", "microbatch_size", "precision"),
    wrong(f"export {GOOD} --gpus 3", "a batch of 64 has no equal shares for 3 GPUs", "Give 63 or 66"),
    wrong(f"export {GOOD} --stage 4", "--stage is '4'", "give 0, 1, 2 or 3"),
    wrong(f"export {GOOD} --offload disk", "--offload is 'disk'", "give cpu or nvme"),
    wrong(f"export {GOOD} --nvme-path /fast", "--nvme-path is for --offload nvme"),
    wrong(f"export {GOOD} --by-hand lr", "--by-hand is 'lr'", "lr_schedule or optimizer"),
    wrong(f"export {GOOD} --optimizer muon", "optimizer=muon", "--by-hand optimizer"),
    wrong(f"export {GOOD} --device rtx-4090", "--device is for where weights and state of a model", "give --model too"),
    wrong(f"export {GOOD} --model torchvision:resnet18", "--model is for where weights", "give --device too"),
    wrong(f"export {GOOD} --host-budget 64GiB", "--host-budget is for where weights", "give --device too"),
    wrong(f"export {GOOD} --model model.py:build --device rtx-409", "rtx-409", "did you mean 'rtx-4090'"),
    wrong(f"export {GOOD} --model model.py:build --device cpu", "--device is 'cpu'", "one card"),
    wrong(f"export {GOOD} -o nowhere/x.json", "cannot be written", "Give a file in a folder"),
    wrong(f"export {GOOD} -o x.yaml", "the file's ending says the format: .json"),
    wrong(f"export {GOOD} --shard full", "unknown option '--shard'"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
