"""`snugfit train` typed wrong: models, data, numbers, recipes, run directories; nothing is written."""

import pytest
from wrong_lines import check, every, within, wrong

LINES = [
    wrong("train", "MODEL and --data must be given", "only --run-dir DIR --resume knows them already"),
    *within(
        "train {}",
        wrong("model.py:build", "--data must be given", "only --run-dir DIR --resume knows them already"),
        wrong("--data digits", "MODEL must be given", "only --run-dir DIR --resume knows them already"),
        wrong(
            "model.py:ReturnsNone --data digits --image-size 8",
            "model 'model.py:ReturnsNone' cannot take an image of digits",
            "Give --image-size, --model-arg, or a model for such images",
        ),
        wrong(
            "hf:nowhere --data prose",
            "model 'hf:nowhere' is neither a directory with a config.json",
            "did you mean 'cohere'",
        ),
        wrong(
            "hf:nowhere --data prose --download",
            "model 'hf:nowhere' cannot be fetched",
            "Check the name and the network, or give a local directory",
        ),
        wrong("hf:words --data prose", "config 'words/config.json' is not understood:"),
        wrong(
            "hf:number_type --data prose",
            "config 'number_type/config.json' says no model_type",
            'Give one that says it, such as "model_type": "llama"',
        ),
        wrong(
            "hf:pickled --data prose",
            "model 'hf:pickled' has its weights in pytorch_model.bin",
            "save the model with save_pretrained, which writes",
        ),
        wrong(
            "hf:cut_weights --data prose",
            "weights file 'cut_weights/model.safetensors' cannot be read",
            "It is damaged, cut short, or no safetensors file.",
        ),
        *every(
            "{} --data prose --seq-len 16",
            "hf:broken_tokenizer hf:broken_tokenizer_config",
            "the tokenizer of '{}' cannot be read from",
            "Put its tokenizer.json beside them, which needs no other",
        ),
        wrong("hf:llama/config.json --data prose --seq-len 65", "--seq-len is 65", "the model takes at most 64 tokens"),
        wrong(
            "hf:llama/config.json --data prose --seq-len 1",
            "--seq-len is 1",
            "a language model predicts a token from those before it:",
        ),
        wrong("hf:llama/config.json --data prose --seq-len 0", "0", "--seq-len", "see `snugfit train --help`"),
        wrong(
            "hf:llama/config.json --data prose --image-size 8",
            "--image-size has no meaning for causal-lm",
            "give --seq-len",
        ),
        wrong("hf:llama/config.json --data prose --strict", "--strict has no meaning for causal-lm", "Leave it out"),
        wrong(
            "hf:llama/config.json --data topics --task causal-lm",
            "causal-lm",
            "data 'topics' is for text-classification",
            "Leave --task out",
        ),
        wrong(
            "hf:llama/config.json --data csv:one_label.csv --seq-len 16 --task text-classification",
            "data 'csv:one_label.csv' has one label only ('a')",
            "Give other data, or name the right column with",
        ),
        wrong(
            "hf:llama/config.json --data csv:few.csv --seq-len 16 --task text-classification",
            "data 'csv:few.csv' has 2 rows in all",
            "Give at least ten rows for each label",
        ),
    ),
    *within(
        "train {} --data digits",
        wrong("model.py:bild", "model file 'model.py' has no function 'bild'", "did you mean 'build'"),
        wrong(
            "model.py:needs_width",
            "model 'model.py:needs_width' cannot be called with no arguments",
            "Its arguments: (width)",
        ),
        wrong("model.py:exits_with_words", "model 'model.py:exits_with_words' failed: SystemExit: pass"),
        wrong("model.py:recursive", "model 'model.py:recursive' failed: RecursionError: maximum"),
        wrong("model.py:no_memory", "model 'model.py:no_memory' failed: MemoryError"),
        wrong(
            "model.py:the_class",
            "model 'model.py:the_class' returned the class Flatten",
            "Return the model from the function",
        ),
        wrong(
            "model.py:ready",
            "model 'model.py:ready' is a Linear that is built already",
            "give a function that builds it, so that it can be built",
        ),
        *every(
            "{}",
            "model.py:Raises model.py:TakesTwo model.py:OneNumber model.py:quits_in_forward",
            "model '{}' cannot take an image of digits",
            "Give --image-size, --model-arg, or a model for such images",
        ),
        wrong("syntax.py:build", "model file 'syntax.py' does not load: SyntaxError: invalid"),
        wrong("raising.py:build", "model file 'raising.py' does not load: RuntimeError: no"),
        wrong("exiting.py:build", "model file 'exiting.py' does not load: SystemExit: usage:"),
        wrong("latin.py:build", "model file 'latin.py' does not load: SyntaxError: (unicode"),
        wrong("nulls.py:build", "model file 'nulls.py' does not load: SyntaxError: source"),
        wrong(
            "directory.py:build",
            "model file 'directory.py' is a folder",
            "Write path/file.py:function with an existing file",
        ),
        wrong("unreadable.py:build", "model file 'unreadable.py' does not load: OSError: [Errno"),
        wrong("empty.py:build", "model file 'empty.py' has no function 'build'", "Write path/file.py:function"),
        wrong("resnet18", "model 'resnet18' is not understood", "write torchvision:NAME, timm:NAME,"),
        wrong(
            "hf:llama/config.json",
            "model 'hf:llama/config.json' is of kind 'llama'",
            "It can be trained for causal-lm, token-classification,",
        ),
    ),
    *within(
        "train model.py:build --data {}",
        *every(
            "{}", "'' DIGITS mnist", "data '{}' is unknown", "allowed: digits, cifar10:DIR, imagefolder:DIR, random"
        ),
        wrong("digits:x", "data 'digits:x' is unknown", "did you mean 'digits'"),
        wrong("cifar10", "data 'cifar10' names no folder", "Write cifar10:DIR"),
        *every("{}:", "cifar10 imagefolder", "data '{}:' names no folder", "Write {}:DIR"),
        *every(
            "{}",
            "cifar10:nowhere cifar10:model.py",
            "data '{}'",
            "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        ),
        wrong(
            "cifar10:cifar",
            "data 'cifar10:cifar' is incomplete",
            "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        ),
        *every(
            "{}",
            "imagefolder:nowhere imagefolder:model.py",
            "data '{}'",
            "Give a folder with one folder for each class",
        ),
        *every("imagefolder:{}", "empty_folder flat", "data 'imagefolder:{}'", "Put images into {}/CLASS/"),
        wrong(
            "imagefolder:one_class",
            "data 'imagefolder:one_class' has 1 images in all",
            "Give at least ten images for each class",
        ),
        wrong(
            "imagefolder:photos --image-size 8 --batch-size 1",
            "data 'imagefolder:photos' has 2 images in all",
            "Give at least ten images for each class",
        ),
        wrong(
            "imagefolder:photos --image-size 8 --batch-size 1 --strict",
            "data 'imagefolder:photos' has 2 images in all",
            "Give at least ten images for each class",
        ),
        *every(
            "random --samples {} --image-size 8",
            "0 99999999999999999999",
            "{}",
            "--samples",
            "see `snugfit train --help`",
        ),
        wrong(
            "random --samples 9 --image-size 8",
            "batch_size 64 is larger than the 9 training samples of random",
            "give at most 9",
        ),
        wrong(
            "random --samples 64 --image-size 99999999999999999999",
            "99999999999999999999",
            "--image-size",
            "see `snugfit train --help`",
        ),
        wrong(
            "random --samples 64 --image-size 100000000",
            "an image of random cannot be made",
            "Give a smaller --image-size",
        ),
    ),
    *within(
        "train model.py:build --data random --samples 64 --image-size 8 {}",
        wrong(
            "--batch-size 99999999999999999999999",
            "batch_size 99999999999999999999999 is larger than the 64 training",
            "give at most 64",
        ),
        wrong(
            "--seed 99999999999999999999999",
            "99999999999999999999999",
            "training settings",
            "torch takes seeds below 2**64",
        ),
        wrong("--seed -1", "-1", "training settings", "it must be a finite number of at least 0"),
        wrong(
            "--compile nonesuch --max-steps 1",
            "compile is 'nonesuch'",
            "allowed: aot_eager, aot_eager_decomp_partition,",
        ),
    ),
    *within(
        "train model.py:build --data digits {}",
        wrong(
            "--task contrastive", "task 'contrastive' is for hf", "for a model of your own give image-classification or"
        ),
        wrong("--task nonesuch", "task 'nonesuch' is unknown", "allowed: image-classification, text-classification,"),
        wrong("--seq-len 4", "--seq-len has no meaning for image-classification", "Leave it out"),
        wrong("--packing", "--packing has no meaning for image-classification", "Leave it out"),
        wrong("--text-column x", "--text-column has no meaning for image-classification", "Leave it out"),
        *every("--device {}", "gpu rtx-4090", "{}", "--device", "see `snugfit train --help`"),
        wrong("--device cuda", "device 'cuda' is not there", "Use --device cpu, or leave it out"),
        wrong("--keep-checkpoints 1", "--keep-checkpoints is 1", "give at least 2: a damaged one needs a predecessor"),
        wrong("--keep-checkpoints x", "x", "--keep-checkpoints", "see `snugfit train --help`"),
        *every(
            "--weights {}",
            "absent.safetensors directory.safetensors",
            "weights file '{}' does not exist",
            "Give an existing .safetensors file",
        ),
        wrong(
            "--weights unreadable.safetensors",
            "weights file 'unreadable.safetensors' cannot be read",
            "It is damaged, cut short, or no safetensors file",
        ),
        wrong(
            "--weights pickled.pt",
            "weights file 'pickled.pt' is no .safetensors file",
            "convert them with safetensors.torch.save_file",
        ),
        wrong("--weights DEFAULT", "weights 'DEFAULT'", "Give a .safetensors file"),
        wrong(
            "--init meta",
            "init='meta' needs weights from a .safetensors file",
            "Give weights=FILE.safetensors, or use init='device' or",
        ),
        wrong("--freeze 'x.*'", "freeze pattern 'x.*' matches no parameter", "patterns that match: 0.*, 1.*, 4.*, 7.*"),
        *every(
            "--budget {}",
            "10 '10 apples' -3GiB 0",
            "budget '{}' is not understood",
            "Give a number with a unit: B, KB, MB, GB, TB (powers of",
        ),
        wrong("--budget 1e300TiB", "budget '1e300TiB' is more than any memory", "Give a smaller number"),
        wrong("--patience 0", "patience is 0; it must be at least 1"),
        wrong("--patience soon", "patience is 'soon'", "a whole number"),
        wrong(
            "--patience 2 --no-evaluate", "patience goes by evaluations, and evaluate is False", "leave one of them out"
        ),
        wrong("--keep-best loss --no-evaluate", "keep_best goes by evaluations", "leave one of them out"),
        wrong(
            "--keep-best acuracy",
            "--keep-best is 'acuracy', which image-classification does not report",
            "did you mean 'accuracy'? Allowed: loss, accuracy",
        ),
        wrong("--keep-best perplexity", "--keep-best is 'perplexity'", "allowed: loss, accuracy"),
        wrong("--keep-best ''", "--keep-best is ''", "allowed: loss, accuracy"),
        wrong("--allow rounding", "--allow belongs to a plan", "give --budget SIZE too"),
        wrong("--pin checkpoint=all", "--pin belongs to a plan", "give --budget SIZE too"),
        wrong("--host-budget 3GiB", "--host-budget belongs to a plan", "give --budget SIZE too"),
        wrong("--budget 1GiB --allow nonsense", "allow is 'nonsense'", "allowed: exact, rounding, different"),
        wrong(
            "--budget 1GiB --forbid nonsense",
            "nonsense",
            "pins and bans of the plan",
            "allowed: precision, microbatch_size, accumulate_dtype,",
        ),
    ),
    *within(
        "train hf:llama/config.json --data {} --seq-len 16",
        wrong("text:absent.txt", "data 'text:absent.txt'", "Give an existing file or folder"),
        wrong("text:empty.txt", "data file 'empty.txt' is empty", "Remove it, or put text into it"),
        wrong("text:short.txt", "data 'text:short.txt' has too little text", "Give more text"),
        wrong("text:latin.txt", "data file 'latin.txt' is not UTF-8 text", "Convert it"),
        wrong("text:unreadable.txt", "data file 'unreadable.txt' cannot be read: Input/output"),
        wrong("text:no_texts", "data 'text:no_texts'", "Put some there, or name a file"),
        wrong("text:latin_texts", "data file 'latin_texts/a.txt' is not UTF-8 text", "Convert it"),
        wrong("text:", "data 'text:' names no file", "Write text:FILE_OR_DIR"),
        wrong(
            "text:pickled.pt",
            "batch_size 64 is larger than the 1 training samples of text:pickled.pt",
            "give at most 1",
        ),
        wrong("csv:absent.csv", "data 'csv:absent.csv'", "Give an existing file, or a folder of parts"),
        wrong("csv:empty.csv", "data file 'empty.csv' has no rows", "Give a file with some"),
        wrong("csv:header.csv", "data 'header.csv' has no rows", "Give a file with some"),
        wrong("csv:ragged.csv", "data file 'ragged.csv'", "Put texts with commas or line breaks into double quotes"),
        wrong("csv:quote.csv", "data file 'quote.csv'", "Repair that line"),
        wrong("csv:latin.csv", "data file 'latin.csv' is not UTF-8 text", "Convert it"),
        *every(
            "{}",
            "csv:columns.csv csv:nulls.csv",
            "data '{}' has 1 rows in all",
            "Give at least ten rows for each label",
        ),
        wrong("csv:twice.csv", "data file 'twice.csv'", "it is text, text. Name them"),
        wrong("csv:blank.csv", "data 'blank.csv'", "Remove them"),
        wrong("csv:directory.csv", "data 'csv:directory.csv'", "Put one there, or name a file"),
        wrong("csv:unreadable.csv", "data file 'unreadable.csv' cannot be read: Input/output"),
        wrong("csv:few.csv", "data 'csv:few.csv' has 2 rows in all", "Give at least ten rows for each label"),
        *every(
            "jsonl:{}",
            "broken.jsonl document.jsonl deep.jsonl good.csv",
            "data file '{}'",
            'Each line must be one object, such as {"text": "...",',
        ),
        wrong("jsonl:array.jsonl", "data file 'array.jsonl'", 'each line must be one object, such as {"text": "...",'),
        wrong("jsonl:empty.jsonl", "data 'empty.jsonl' has no rows", "Give a file with some"),
        wrong("jsonl:latin.jsonl", "data file 'latin.jsonl' is not UTF-8 text", "Convert it"),
        *every("jsonl:{}", "numbers.jsonl nan.jsonl", "data '{}'", "Name another column with --text-column"),
        wrong("jsonl:chats.jsonl", "data 'chats.jsonl'", "remove the row"),
        wrong("jsonl:unreadable.jsonl", "data file 'unreadable.jsonl' cannot be read: Input/output"),
        *every(
            "parquet:{}",
            "broken.parquet empty.parquet good.csv",
            "data file '{}' cannot be read as parquet",
            "It is damaged, cut short, or another kind of file",
        ),
        wrong(
            "csv:good.jsonl",
            "data 'good.jsonl' has no column that looks like the text (text",
            "Name it with --text-column",
        ),
        wrong("csv:", "data 'csv:' names no file", "Write csv:FILE"),
        wrong("hf:", "data 'hf:' names no name", "Write hf:NAME"),
        wrong(
            "hf:no-such-data",
            "data 'hf:no-such-data' cannot be loaded",
            "Nothing is fetched unless asked for: check the name (NAME",
        ),
        wrong(
            "tsv:good.csv",
            "data 'tsv:good.csv' is unknown for causal-lm",
            "allowed: topics, prose, csv:FILE, jsonl:FILE, parquet:FILE,",
        ),
        wrong("good.csv", "data 'good.csv' is unknown for causal-lm", "it is a file: write csv:good.csv"),
    ),
    *within(
        "train hf:llama/config.json --data csv:good.csv --seq-len 16 {}",
        wrong("--text-column words", "data 'good.csv' has no column 'words'", "its columns: text, label"),
        wrong(
            "--task text-classification --label-column kind",
            "data 'good.csv' has no column 'kind'",
            "its columns: text, label",
        ),
        wrong("--label-column label", "--label-column has no meaning for causal-lm", "Leave it out"),
        wrong(
            "--task text-classification --packing", "--packing has no meaning for text-classification", "Leave it out"
        ),
        wrong("--samples 0", "0", "--samples", "see `snugfit train --help`"),
        wrong(
            "--batch-size 1000",
            "batch_size 1000 is larger than the 48 training samples of csv:good.csv",
            "give at most 48",
        ),
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
