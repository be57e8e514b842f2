"""`snugfit train` typed wrong: models, data, numbers, recipes, run directories; nothing is written."""

import pytest
from wrong_lines import check, wrong

LINES = [
    wrong("train", "MODEL and --data must be given", "only --run-dir DIR --resume knows them already"),
    wrong("train model.py:build", "--data must be given", "only --run-dir DIR --resume knows them already"),
    wrong("train --data digits", "MODEL must be given", "only --run-dir DIR --resume knows them already"),
    wrong("train model.py:bild --data digits", "model file 'model.py' has no function 'bild'", "did you mean 'build'"),
    wrong(
        "train model.py:needs_width --data digits",
        "model 'model.py:needs_width' cannot be called with no arguments",
        "Its arguments: (width)",
    ),
    wrong(
        "train model.py:exits_with_words --data digits", "model 'model.py:exits_with_words' failed: SystemExit: pass"
    ),
    wrong("train model.py:recursive --data digits", "model 'model.py:recursive' failed: RecursionError: maximum"),
    wrong("train model.py:no_memory --data digits", "model 'model.py:no_memory' failed: MemoryError"),
    wrong(
        "train model.py:the_class --data digits",
        "model 'model.py:the_class' returned the class Flatten",
        "Return the model from the function",
    ),
    wrong(
        "train model.py:ready --data digits",
        "model 'model.py:ready' is a Linear that is built already",
        "give a function that builds it, so that it can be built",
    ),
    wrong(
        "train model.py:Raises --data digits",
        "model 'model.py:Raises' cannot take an image of digits",
        "Give --image-size, --model-arg, or a model for such images",
    ),
    wrong(
        "train model.py:ReturnsNone --data digits --image-size 8",
        "model 'model.py:ReturnsNone' cannot take an image of digits",
        "Give --image-size, --model-arg, or a model for such images",
    ),
    wrong(
        "train model.py:TakesTwo --data digits",
        "model 'model.py:TakesTwo' cannot take an image of digits",
        "Give --image-size, --model-arg, or a model for such images",
    ),
    wrong(
        "train model.py:OneNumber --data digits",
        "model 'model.py:OneNumber' cannot take an image of digits",
        "Give --image-size, --model-arg, or a model for such images",
    ),
    wrong(
        "train model.py:quits_in_forward --data digits",
        "model 'model.py:quits_in_forward' cannot take an image of digits",
        "Give --image-size, --model-arg, or a model for such images",
    ),
    wrong("train syntax.py:build --data digits", "model file 'syntax.py' does not load: SyntaxError: invalid"),
    wrong("train raising.py:build --data digits", "model file 'raising.py' does not load: RuntimeError: no"),
    wrong("train exiting.py:build --data digits", "model file 'exiting.py' does not load: SystemExit: usage:"),
    wrong("train latin.py:build --data digits", "model file 'latin.py' does not load: SyntaxError: (unicode"),
    wrong("train nulls.py:build --data digits", "model file 'nulls.py' does not load: SyntaxError: source"),
    wrong(
        "train directory.py:build --data digits",
        "model file 'directory.py' is a folder",
        "Write path/file.py:function with an existing file",
    ),
    wrong("train unreadable.py:build --data digits", "model file 'unreadable.py' does not load: OSError: [Errno"),
    wrong(
        "train empty.py:build --data digits",
        "model file 'empty.py' has no function 'build'",
        "Write path/file.py:function",
    ),
    wrong("train resnet18 --data digits", "model 'resnet18' is not understood", "write torchvision:NAME, timm:NAME,"),
    wrong(
        "train model.py:build --data ''", "data '' is unknown", "allowed: digits, cifar10:DIR, imagefolder:DIR, random"
    ),
    wrong("train model.py:build --data digits:x", "data 'digits:x' is unknown", "did you mean 'digits'"),
    wrong(
        "train model.py:build --data DIGITS",
        "data 'DIGITS' is unknown",
        "allowed: digits, cifar10:DIR, imagefolder:DIR, random",
    ),
    wrong(
        "train model.py:build --data mnist",
        "data 'mnist' is unknown",
        "allowed: digits, cifar10:DIR, imagefolder:DIR, random",
    ),
    wrong("train model.py:build --data cifar10", "data 'cifar10' names no folder", "Write cifar10:DIR"),
    wrong("train model.py:build --data cifar10:", "data 'cifar10:' names no folder", "Write cifar10:DIR"),
    wrong(
        "train model.py:build --data cifar10:nowhere",
        "data 'cifar10:nowhere'",
        "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
    wrong(
        "train model.py:build --data cifar10:cifar",
        "data 'cifar10:cifar' is incomplete",
        "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
    wrong(
        "train model.py:build --data cifar10:model.py",
        "data 'cifar10:model.py'",
        "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
    wrong("train model.py:build --data imagefolder:", "data 'imagefolder:' names no folder", "Write imagefolder:DIR"),
    wrong(
        "train model.py:build --data imagefolder:nowhere",
        "data 'imagefolder:nowhere'",
        "Give a folder with one folder for each class",
    ),
    wrong(
        "train model.py:build --data imagefolder:empty_folder",
        "data 'imagefolder:empty_folder'",
        "Put images into empty_folder/CLASS/",
    ),
    wrong("train model.py:build --data imagefolder:flat", "data 'imagefolder:flat'", "Put images into flat/CLASS/"),
    wrong(
        "train model.py:build --data imagefolder:one_class",
        "data 'imagefolder:one_class' has 1 images in all",
        "Give at least ten images for each class",
    ),
    wrong(
        "train model.py:build --data imagefolder:photos --image-size 8 --batch-size 1",
        "data 'imagefolder:photos' has 2 images in all",
        "Give at least ten images for each class",
    ),
    wrong(
        "train model.py:build --data imagefolder:photos --image-size 8 --batch-size 1 --strict",
        "data 'imagefolder:photos' has 2 images in all",
        "Give at least ten images for each class",
    ),
    wrong(
        "train model.py:build --data imagefolder:model.py",
        "data 'imagefolder:model.py'",
        "Give a folder with one folder for each class",
    ),
    wrong(
        "train model.py:build --data random --samples 0 --image-size 8", "0", "--samples", "see `snugfit train --help`"
    ),
    wrong(
        "train model.py:build --data random --samples 99999999999999999999 --image-size 8",
        "99999999999999999999",
        "--samples",
        "see `snugfit train --help`",
    ),
    wrong(
        "train model.py:build --data random --samples 9 --image-size 8",
        "batch_size 64 is larger than the 9 training samples of random",
        "give at most 9",
    ),
    wrong(
        "train model.py:build --data random --samples 64 --image-size 99999999999999999999",
        "99999999999999999999",
        "--image-size",
        "see `snugfit train --help`",
    ),
    wrong(
        "train model.py:build --data random --samples 64 --image-size 100000000",
        "an image of random cannot be made",
        "Give a smaller --image-size",
    ),
    wrong(
        "train model.py:build --data random --samples 64 --image-size 8 --batch-size 99999999999999999999999",
        "batch_size 99999999999999999999999 is larger than the 64 training",
        "give at most 64",
    ),
    wrong(
        "train model.py:build --data random --samples 64 --image-size 8 --seed 99999999999999999999999",
        "99999999999999999999999",
        "training settings",
        "torch takes seeds below 2**64",
    ),
    wrong(
        "train model.py:build --data random --samples 64 --image-size 8 --seed -1",
        "-1",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong(
        "train model.py:build --data random --samples 64 --image-size 8 --compile nonesuch --max-steps 1",
        "compile is 'nonesuch'",
        "allowed: aot_eager, aot_eager_decomp_partition,",
    ),
    wrong(
        "train model.py:build --data digits --task contrastive",
        "task 'contrastive' is for hf",
        "for a model of your own give image-classification or",
    ),
    wrong(
        "train model.py:build --data digits --task nonesuch",
        "task 'nonesuch' is unknown",
        "allowed: image-classification, text-classification,",
    ),
    wrong(
        "train model.py:build --data digits --seq-len 4",
        "--seq-len has no meaning for image-classification",
        "Leave it out",
    ),
    wrong(
        "train model.py:build --data digits --packing",
        "--packing has no meaning for image-classification",
        "Leave it out",
    ),
    wrong(
        "train model.py:build --data digits --text-column x",
        "--text-column has no meaning for image-classification",
        "Leave it out",
    ),
    wrong("train model.py:build --data digits --device gpu", "gpu", "--device", "see `snugfit train --help`"),
    wrong(
        "train model.py:build --data digits --device cuda",
        "device 'cuda' is not there",
        "Use --device cpu, or leave it out",
    ),
    wrong("train model.py:build --data digits --device rtx-4090", "rtx-4090", "--device", "see `snugfit train --help`"),
    wrong(
        "train model.py:build --data digits --keep-checkpoints 1",
        "--keep-checkpoints is 1",
        "give at least 2: a damaged one needs a predecessor",
    ),
    wrong(
        "train model.py:build --data digits --keep-checkpoints x",
        "x",
        "--keep-checkpoints",
        "see `snugfit train --help`",
    ),
    wrong(
        "train model.py:build --data digits --weights absent.safetensors",
        "weights file 'absent.safetensors' does not exist",
        "Give an existing .safetensors file",
    ),
    wrong(
        "train model.py:build --data digits --weights directory.safetensors",
        "weights file 'directory.safetensors' does not exist",
        "Give an existing .safetensors file",
    ),
    wrong(
        "train model.py:build --data digits --weights unreadable.safetensors",
        "weights file 'unreadable.safetensors' cannot be read",
        "It is damaged, cut short, or no safetensors file",
    ),
    wrong(
        "train model.py:build --data digits --weights pickled.pt",
        "weights file 'pickled.pt' is no .safetensors file",
        "convert them with safetensors.torch.save_file",
    ),
    wrong("train model.py:build --data digits --weights DEFAULT", "weights 'DEFAULT'", "Give a .safetensors file"),
    wrong(
        "train model.py:build --data digits --init meta",
        "init='meta' needs weights from a .safetensors file",
        "Give weights=FILE.safetensors, or use init='device' or",
    ),
    wrong(
        "train model.py:build --data digits --freeze 'x.*'",
        "freeze pattern 'x.*' matches no parameter",
        "patterns that match: 0.*, 1.*, 4.*, 7.*",
    ),
    wrong(
        "train model.py:build --data digits --budget 10",
        "budget '10' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "train model.py:build --data digits --budget '10 apples'",
        "budget '10 apples' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "train model.py:build --data digits --budget -3GiB",
        "budget '-3GiB' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "train model.py:build --data digits --budget 0",
        "budget '0' is not understood",
        "Give a number with a unit: B, KB, MB, GB, TB (powers of",
    ),
    wrong(
        "train model.py:build --data digits --budget 1e300TiB",
        "budget '1e300TiB' is more than any memory",
        "Give a smaller number",
    ),
    wrong("train model.py:build --data digits --allow rounding", "--allow belongs to a plan", "give --budget SIZE too"),
    wrong(
        "train model.py:build --data digits --pin checkpoint=all", "--pin belongs to a plan", "give --budget SIZE too"
    ),
    wrong(
        "train model.py:build --data digits --host-budget 3GiB",
        "--host-budget belongs to a plan",
        "give --budget SIZE too",
    ),
    wrong(
        "train model.py:build --data digits --budget 1GiB --allow nonsense",
        "allow is 'nonsense'",
        "allowed: exact, rounding, different",
    ),
    wrong(
        "train model.py:build --data digits --budget 1GiB --forbid nonsense",
        "nonsense",
        "pins and bans of the plan",
        "allowed: precision, microbatch_size, accumulate_dtype,",
    ),
    wrong(
        "train hf:nowhere --data prose",
        "model 'hf:nowhere' is neither a directory with a config.json",
        "did you mean 'cohere'",
    ),
    wrong(
        "train hf:nowhere --data prose --download",
        "model 'hf:nowhere' cannot be fetched",
        "Check the name and the network, or give a local directory",
    ),
    wrong("train hf:words --data prose", "config 'words/config.json' is not understood:"),
    wrong(
        "train hf:number_type --data prose",
        "config 'number_type/config.json' says no model_type",
        'Give one that says it, such as "model_type": "llama"',
    ),
    wrong(
        "train hf:pickled --data prose",
        "model 'hf:pickled' has its weights in pytorch_model.bin",
        "save the model with save_pretrained, which writes",
    ),
    wrong(
        "train hf:cut_weights --data prose",
        "model 'hf:cut_weights' has weights and no tokenizer",
        "Put the tokenizer's files beside them (tokenizer.json,",
    ),
    wrong(
        "train hf:broken_tokenizer --data prose --seq-len 16",
        "the tokenizer of 'hf:broken_tokenizer' cannot be read from",
        "Put its tokenizer.json beside them, which needs no other",
    ),
    wrong(
        "train hf:broken_tokenizer_config --data prose --seq-len 16",
        "the tokenizer of 'hf:broken_tokenizer_config' cannot be read from",
        "Put its tokenizer.json beside them, which needs no other",
    ),
    wrong(
        "train hf:llama/config.json --data digits",
        "model 'hf:llama/config.json' is of kind 'llama'",
        "It can be trained for causal-lm, token-classification,",
    ),
    wrong(
        "train hf:llama/config.json --data prose --seq-len 65", "--seq-len is 65", "the model takes at most 64 tokens"
    ),
    wrong(
        "train hf:llama/config.json --data prose --seq-len 1",
        "--seq-len is 1",
        "a language model predicts a token from those before it:",
    ),
    wrong("train hf:llama/config.json --data prose --seq-len 0", "0", "--seq-len", "see `snugfit train --help`"),
    wrong(
        "train hf:llama/config.json --data prose --image-size 8",
        "--image-size has no meaning for causal-lm",
        "give --seq-len",
    ),
    wrong("train hf:llama/config.json --data prose --strict", "--strict has no meaning for causal-lm", "Leave it out"),
    wrong(
        "train hf:llama/config.json --data topics --task causal-lm",
        "causal-lm",
        "data 'topics' is for text-classification",
        "Leave --task out",
    ),
    wrong(
        "train hf:llama/config.json --data text:absent.txt --seq-len 16",
        "data 'text:absent.txt'",
        "Give an existing file or folder",
    ),
    wrong(
        "train hf:llama/config.json --data text:empty.txt --seq-len 16",
        "data file 'empty.txt' is empty",
        "Remove it, or put text into it",
    ),
    wrong(
        "train hf:llama/config.json --data text:short.txt --seq-len 16",
        "data 'text:short.txt' has too little text",
        "Give more text",
    ),
    wrong(
        "train hf:llama/config.json --data text:latin.txt --seq-len 16",
        "data file 'latin.txt' is not UTF-8 text",
        "Convert it",
    ),
    wrong(
        "train hf:llama/config.json --data text:unreadable.txt --seq-len 16",
        "data file 'unreadable.txt' cannot be read: Input/output",
    ),
    wrong(
        "train hf:llama/config.json --data text:no_texts --seq-len 16",
        "data 'text:no_texts'",
        "Put some there, or name a file",
    ),
    wrong(
        "train hf:llama/config.json --data text:latin_texts --seq-len 16",
        "data file 'latin_texts/a.txt' is not UTF-8 text",
        "Convert it",
    ),
    wrong(
        "train hf:llama/config.json --data text: --seq-len 16", "data 'text:' names no file", "Write text:FILE_OR_DIR"
    ),
    wrong(
        "train hf:llama/config.json --data text:pickled.pt --seq-len 16",
        "batch_size 64 is larger than the 1 training samples of text:pickled.pt",
        "give at most 1",
    ),
    wrong(
        "train hf:llama/config.json --data csv:absent.csv --seq-len 16",
        "data 'csv:absent.csv'",
        "Give an existing file, or a folder of parts",
    ),
    wrong(
        "train hf:llama/config.json --data csv:empty.csv --seq-len 16",
        "data file 'empty.csv' has no rows",
        "Give a file with some",
    ),
    wrong(
        "train hf:llama/config.json --data csv:header.csv --seq-len 16",
        "data 'header.csv' has no rows",
        "Give a file with some",
    ),
    wrong(
        "train hf:llama/config.json --data csv:ragged.csv --seq-len 16",
        "data file 'ragged.csv'",
        "Put texts with commas or line breaks into double quotes",
    ),
    wrong("train hf:llama/config.json --data csv:quote.csv --seq-len 16", "data file 'quote.csv'", "Repair that line"),
    wrong(
        "train hf:llama/config.json --data csv:latin.csv --seq-len 16",
        "data file 'latin.csv' is not UTF-8 text",
        "Convert it",
    ),
    wrong(
        "train hf:llama/config.json --data csv:columns.csv --seq-len 16",
        "data 'csv:columns.csv' has 1 rows in all",
        "Give at least ten rows for each label",
    ),
    wrong(
        "train hf:llama/config.json --data csv:twice.csv --seq-len 16",
        "data file 'twice.csv'",
        "it is text, text. Name them",
    ),
    wrong(
        "train hf:llama/config.json --data csv:nulls.csv --seq-len 16",
        "data 'csv:nulls.csv' has 1 rows in all",
        "Give at least ten rows for each label",
    ),
    wrong("train hf:llama/config.json --data csv:blank.csv --seq-len 16", "data 'blank.csv'", "Remove them"),
    wrong(
        "train hf:llama/config.json --data csv:directory.csv --seq-len 16",
        "data 'csv:directory.csv'",
        "Put one there, or name a file",
    ),
    wrong(
        "train hf:llama/config.json --data csv:unreadable.csv --seq-len 16",
        "data file 'unreadable.csv' cannot be read: Input/output",
    ),
    wrong(
        "train hf:llama/config.json --data csv:few.csv --seq-len 16",
        "data 'csv:few.csv' has 2 rows in all",
        "Give at least ten rows for each label",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 --text-column words",
        "data 'good.csv' has no column 'words'",
        "its columns: text, label",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 --task text-classification --label-column kind",
        "data 'good.csv' has no column 'kind'",
        "its columns: text, label",
    ),
    wrong(
        "train hf:llama/config.json --data csv:one_label.csv --seq-len 16 --task text-classification",
        "data 'csv:one_label.csv' has one label only ('a')",
        "Give other data, or name the right column with",
    ),
    wrong(
        "train hf:llama/config.json --data csv:few.csv --seq-len 16 --task text-classification",
        "data 'csv:few.csv' has 2 rows in all",
        "Give at least ten rows for each label",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 --label-column label",
        "--label-column has no meaning for causal-lm",
        "Leave it out",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 --task text-classification --packing",
        "--packing has no meaning for text-classification",
        "Leave it out",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 --samples 0",
        "0",
        "--samples",
        "see `snugfit train --help`",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 --batch-size 1000",
        "batch_size 1000 is larger than the 48 training samples of csv:good.csv",
        "give at most 48",
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:broken.jsonl --seq-len 16",
        "data file 'broken.jsonl'",
        'Each line must be one object, such as {"text": "...",',
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:array.jsonl --seq-len 16",
        "data file 'array.jsonl'",
        'each line must be one object, such as {"text": "...",',
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:document.jsonl --seq-len 16",
        "data file 'document.jsonl'",
        'Each line must be one object, such as {"text": "...",',
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:empty.jsonl --seq-len 16",
        "data 'empty.jsonl' has no rows",
        "Give a file with some",
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:latin.jsonl --seq-len 16",
        "data file 'latin.jsonl' is not UTF-8 text",
        "Convert it",
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:numbers.jsonl --seq-len 16",
        "data 'numbers.jsonl'",
        "Name another column with --text-column",
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:nan.jsonl --seq-len 16",
        "data 'nan.jsonl'",
        "Name another column with --text-column",
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:deep.jsonl --seq-len 16",
        "data file 'deep.jsonl'",
        'Each line must be one object, such as {"text": "...",',
    ),
    wrong("train hf:llama/config.json --data jsonl:chats.jsonl --seq-len 16", "data 'chats.jsonl'", "remove the row"),
    wrong(
        "train hf:llama/config.json --data jsonl:unreadable.jsonl --seq-len 16",
        "data file 'unreadable.jsonl' cannot be read: Input/output",
    ),
    wrong(
        "train hf:llama/config.json --data parquet:broken.parquet --seq-len 16",
        "data file 'broken.parquet' cannot be read as parquet",
        "It is damaged, cut short, or another kind of file",
    ),
    wrong(
        "train hf:llama/config.json --data parquet:empty.parquet --seq-len 16",
        "data file 'empty.parquet' cannot be read as parquet",
        "It is damaged, cut short, or another kind of file",
    ),
    wrong(
        "train hf:llama/config.json --data parquet:good.csv --seq-len 16",
        "data file 'good.csv' cannot be read as parquet",
        "It is damaged, cut short, or another kind of file",
    ),
    wrong(
        "train hf:llama/config.json --data csv:good.jsonl --seq-len 16",
        "data 'good.jsonl' has no column that looks like the text (text",
        "Name it with --text-column",
    ),
    wrong(
        "train hf:llama/config.json --data jsonl:good.csv --seq-len 16",
        "data file 'good.csv'",
        'Each line must be one object, such as {"text": "...",',
    ),
    wrong("train hf:llama/config.json --data csv: --seq-len 16", "data 'csv:' names no file", "Write csv:FILE"),
    wrong("train hf:llama/config.json --data hf: --seq-len 16", "data 'hf:' names no name", "Write hf:NAME"),
    wrong(
        "train hf:llama/config.json --data hf:no-such-data --seq-len 16",
        "data 'hf:no-such-data' cannot be loaded",
        "Nothing is fetched unless asked for: check the name (NAME",
    ),
    wrong(
        "train hf:llama/config.json --data tsv:good.csv --seq-len 16",
        "data 'tsv:good.csv' is unknown for causal-lm",
        "allowed: topics, prose, csv:FILE, jsonl:FILE, parquet:FILE,",
    ),
    wrong(
        "train hf:llama/config.json --data good.csv --seq-len 16",
        "data 'good.csv' is unknown for causal-lm",
        "it is a file: write csv:good.csv",
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
