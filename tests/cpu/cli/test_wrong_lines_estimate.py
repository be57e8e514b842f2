"""`snugfit estimate` typed wrong: models, configs, numbers, recipes, files."""

import pytest
from wrong_lines import check, wrong

LINES = [
    wrong("estimate", "the following arguments are required", "see `snugfit estimate --help`"),
    wrong("estimate --json", "the following arguments are required", "see `snugfit estimate --help`"),
    wrong("estimate torchvision", "model 'torchvision' is not understood", "write torchvision:NAME, timm:NAME,"),
    wrong("estimate :resnet18", "model ':resnet18' is not understood", "write torchvision:NAME, timm:NAME,"),
    wrong(
        "estimate torchvison:resnet18",
        "model 'torchvison:resnet18' is not understood",
        "did you mean 'torchvision:resnet18'",
    ),
    wrong(
        "estimate torchvision:resnet19", "model 'torchvision:resnet19' is unknown", "did you mean 'torchvision:resnet18"
    ),
    wrong("estimate hf:", "model 'hf:' names nothing", "Write hf:DIRECTORY, hf:path/config.json or a kind such as"),
    wrong(
        "estimate hf:no/such/model",
        "model 'hf:no/such/model' is neither a directory with a config.json",
        "nothing is downloaded unless asked for: add --download to",
    ),
    wrong("estimate hf:./nowhere", "model 'hf:./nowhere'", "Give a directory with a config.json"),
    wrong("estimate hf:nowhere/config.json", "model 'hf:nowhere/config.json'", "Give a directory with a config.json"),
    wrong(
        "estimate hf:no_type",
        "config 'no_type/config.json' says no model_type",
        'Give one that says it, such as "model_type": "llama"',
    ),
    wrong(
        "estimate hf:list",
        "config 'list/config.json' says no model_type",
        'Give one that says it, such as "model_type": "llama"',
    ),
    wrong(
        "estimate hf:cut",
        "config 'cut/config.json' cannot be read as JSON",
        "Give the config.json that belongs to the model",
    ),
    wrong(
        "estimate hf:empty",
        "config 'empty/config.json' cannot be read as JSON",
        "Give the config.json that belongs to the model",
    ),
    wrong(
        "estimate hf:latin",
        "config 'latin/config.json' cannot be read as JSON",
        "Give the config.json that belongs to the model",
    ),
    wrong("estimate hf:words", "config 'words/config.json' is not understood:"),
    wrong("estimate hf:negative", "model hf:negative could not be built for causal-lm", "Check the config and --task"),
    wrong("estimate hf:uneven", "config 'uneven/config.json' is not understood:"),
    wrong(
        "estimate hf:number_type",
        "config 'number_type/config.json' says no model_type",
        'Give one that says it, such as "model_type": "llama"',
    ),
    wrong("estimate hf:folder_config", "model 'hf:folder_config'", "Give a directory with a config.json"),
    wrong(
        "estimate hf:folder_config/config.json",
        "model 'hf:folder_config/config.json'",
        "Give a directory with a config.json",
    ),
    wrong("estimate hf:no_config", "model 'hf:no_config'", "Give a directory with a config.json"),
    wrong(
        "estimate hf:unreadable_config",
        "config 'unreadable_config/config.json' cannot be read as JSON",
        "Give the config.json that belongs to the model",
    ),
    wrong(
        "estimate hf:model.py",
        "config 'model.py' cannot be read as JSON",
        "Give the config.json that belongs to the model",
    ),
    wrong(
        "estimate hf:notebook.ipynb",
        "config 'notebook.ipynb' says no model_type",
        'Give one that says it, such as "model_type": "llama"',
    ),
    wrong(
        "estimate absent.py:build",
        "model file 'absent.py' does not exist",
        "Write path/file.py:function with an existing file",
    ),
    wrong("estimate model.py", "model 'model.py' names no function", "Write path/file.py:function"),
    wrong("estimate model.py:", "model 'model.py:' names no function", "Write path/file.py:function"),
    wrong("estimate model.py:bild", "model file 'model.py' has no function 'bild'", "did you mean 'build'"),
    wrong("estimate model.py:number", "model file 'model.py' has no function 'number'", "did you mean 'OneNumber'"),
    wrong(
        "estimate model.py:ready",
        "model 'model.py:ready' is a Linear that is built already",
        "give a function that builds it, so that it can be built",
    ),
    wrong("estimate model.py:raises --image-size 8", "model 'model.py:raises' failed: RuntimeError: no such layer"),
    wrong(
        "estimate model.py:no_module", "model 'model.py:no_module' returned int", "Return the model from the function"
    ),
    wrong(
        "estimate model.py:needs_width",
        "model 'model.py:needs_width' cannot be called with no arguments",
        "Its arguments: (width)",
    ),
    wrong("estimate model.py:exits", "model 'model.py:exits' failed: SystemExit: 3"),
    wrong("estimate model.py:exits_with_words", "model 'model.py:exits_with_words' failed: SystemExit: pass"),
    wrong("estimate model.py:recursive", "model 'model.py:recursive' failed: RecursionError: maximum"),
    wrong("estimate model.py:no_memory", "model 'model.py:no_memory' failed: MemoryError"),
    wrong(
        "estimate model.py:the_class",
        "model 'model.py:the_class' returned the class Flatten",
        "Return the model from the function",
    ),
    wrong("estimate model.py:no_parameters --image-size 8", "the model has no parameter that requires a gradient, so"),
    wrong(
        "estimate model.py:Raises --image-size 8",
        "the step cannot run at",
        "Check that model, batch and loss fit each other",
    ),
    wrong(
        "estimate model.py:ReturnsNone --image-size 8",
        "the step cannot run at",
        "Check that model, batch and loss fit each other",
    ),
    wrong(
        "estimate model.py:TakesTwo --image-size 8",
        "the model gets the batch",
        "Say how a batch reaches the model: forward=lambda model,",
    ),
    wrong(
        "estimate model.py:OneNumber --image-size 8",
        "the step cannot run at",
        "Check that model, batch and loss fit each other",
    ),
    wrong(
        "estimate model.py:quits_in_forward --image-size 8",
        "the step cannot run at",
        "Check that model, batch and loss fit each other",
    ),
    wrong("estimate model.py:build", "nothing says which images 'model.py:build' takes", "Give --image-size N"),
    wrong(
        "estimate model.py:build --image-size 9",
        "the step cannot run in module '4' (Linear)",
        "Check that model, batch and loss fit each other",
    ),
    wrong("estimate syntax.py:build", "model file 'syntax.py' does not load: SyntaxError: invalid"),
    wrong("estimate raising.py:build", "model file 'raising.py' does not load: RuntimeError: no"),
    wrong("estimate exiting.py:build", "model file 'exiting.py' does not load: SystemExit: usage:"),
    wrong("estimate importing.py:build", "model file 'importing.py' does not load:"),
    wrong("estimate latin.py:build", "model file 'latin.py' does not load: SyntaxError: (unicode"),
    wrong("estimate nulls.py:build", "model file 'nulls.py' does not load: SyntaxError: source"),
    wrong("estimate tabs.py:build", "model file 'tabs.py' does not load: TabError: inconsistent"),
    wrong("estimate empty.py:build", "model file 'empty.py' has no function 'build'", "Write path/file.py:function"),
    wrong(
        "estimate directory.py:build",
        "model file 'directory.py' is a folder",
        "Write path/file.py:function with an existing file",
    ),
    wrong("estimate unreadable.py:build", "model file 'unreadable.py' does not load: OSError: [Errno"),
    wrong(
        "estimate dangling.py:build",
        "model file 'dangling.py' does not exist",
        "Write path/file.py:function with an existing file",
    ),
    wrong(
        "estimate loop.py:build",
        "model file 'loop.py' does not exist",
        "Write path/file.py:function with an existing file",
    ),
    wrong(
        "estimate notebook.ipynb:build",
        "model 'notebook.ipynb:build' is not understood",
        "write torchvision:NAME, timm:NAME,",
    ),
    wrong("estimate pickled.pt", "model 'pickled.pt' is not understood", "Write torchvision:NAME, timm:NAME,"),
    wrong("estimate ./empty_folder", "model './empty_folder' is not understood", "Write torchvision:NAME, timm:NAME,"),
    wrong(
        "estimate model.py:build --image-size 8 --device rtx4091",
        "device 'rtx4091' is unknown",
        "did you mean 'rtx-4090'",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --device ''",
        "device '' is unknown",
        "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --device cuda",
        "device 'cuda' is unknown",
        "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --device gpu",
        "device 'gpu' is unknown",
        "allowed: t4-16gb, v100-16gb, v100-32gb, a10g-24gb, l4-24gb,",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --device local",
        "device 'local' is the CUDA GPU of this machine",
        "Name a card of the table (snugfit devices), or cpu",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --device rtx-4090,l4",
        "device 'rtx-4090,l4' is unknown",
        "did you mean 'rtx-4090'",
    ),
    wrong("estimate model.py:build --image-size big", "big", "--image-size", "see `snugfit estimate --help`"),
    wrong("estimate model.py:build --image-size 0", "0", "--image-size", "see `snugfit estimate --help`"),
    wrong("estimate model.py:build --image-size -8", "-8", "--image-size", "see `snugfit estimate --help`"),
    wrong("estimate model.py:build --image-size 8.5", "8.5", "--image-size", "see `snugfit estimate --help`"),
    wrong("estimate model.py:build --image-size 8x8", "8x8", "--image-size", "see `snugfit estimate --help`"),
    wrong(
        "estimate model.py:build --image-size 99999999999999999999",
        "99999999999999999999",
        "--image-size",
        "see `snugfit estimate --help`",
    ),
    wrong("estimate model.py:build --image-size 1000000000", "1000000000", "--batch-size 64", "Give smaller ones"),
    wrong("estimate model.py:build --image-size 8 --batch-size 0", "0", "training settings", "it must be at least 1"),
    wrong("estimate model.py:build --image-size 8 --batch-size -1", "-1", "training settings", "it must be at least 1"),
    wrong(
        "estimate model.py:build --image-size 8 --batch-size 1e3", "1e3", "training settings", "it takes a whole number"
    ),
    wrong(
        "estimate model.py:build --image-size 8 --batch-size 64k", "64k", "training settings", "it takes a whole number"
    ),
    wrong(
        "estimate model.py:build --image-size 8 --batch-size 99999999999999999999999",
        "--batch-size 99999999999999999999999",
        "Give smaller ones",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --batch-size 9000000000000000000",
        "--batch-size 9000000000000000000",
        "Give smaller ones",
    ),
    wrong("estimate model.py:build --image-size 8 --batch-size ''", "training settings", "it takes a whole number"),
    wrong(
        "estimate model.py:build --image-size 8 --batch-size 4 --batch-size x",
        "x",
        "training settings",
        "it takes a whole number",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe absent.yaml",
        "recipe file 'absent.yaml' cannot be read",
        "Give an existing file",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe broken.yaml",
        "recipe file 'broken.yaml'",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe list.yaml",
        "recipe file 'list.yaml' holds a list and no fields",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe word.yaml",
        "recipe file 'word.yaml' holds a str and no fields",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe latin.yaml",
        "recipe file 'latin.yaml' is not YAML, as it is not UTF-8 text",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe object.yaml",
        "recipe file 'object.yaml'",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe unknown.yaml",
        "recipe 'unknown.yaml'",
        "did you mean 'microbatch_size'",
    ),
    wrong("estimate model.py:build --image-size 8 --recipe types.yaml", "recipe 'types.yaml': 3 problems"),
    wrong(
        "estimate model.py:build --image-size 8 --recipe nested.yaml",
        "recipe 'nested.yaml'",
        "it takes a word or a list",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe date.yaml", "recipe 'date.yaml'", "it takes a word or a list"
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe twice.yaml",
        "recipe file 'twice.yaml'",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe control.yaml",
        "recipe file 'control.yaml' is not YAML",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe newer.yaml",
        "recipe 'newer.yaml'",
        "allowed: precision, microbatch_size, accumulate_dtype,",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe directory.yaml",
        "recipe file 'directory.yaml' cannot be read",
        "Give an existing file",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe unreadable.yaml",
        "recipe file 'unreadable.yaml' cannot be read",
        "Give an existing file",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe model.py",
        "recipe file 'model.py'",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe pickled.pt",
        "recipe file 'pickled.pt' is not YAML",
        "Write `field: value` lines, for example `checkpoint: all`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --recipe ''",
        "--recipe",
        "'' names no file or folder",
        "see `snugfit estimate --help`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --precision fp64",
        "precision is 'fp64'",
        "did you mean 'fp32' (casts nothing: float64 stays float64)?",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --precision bf16",
        "precision is 'bf16'",
        "weights and optimizer state stay fp32) or 'bf16-true'",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --precision",
        "--precision",
        "expected one argument",
        "see `snugfit estimate --help`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --optimizer lion",
        "lion",
        "training settings",
        "allowed: adam, adamw, sgd, adafactor, muon, adamw8bit,",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --optimizer none",
        "none",
        "training settings",
        "allowed: adam, adamw, sgd, adafactor, muon, adamw8bit,",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --checkpoint evry:2",
        "checkpoint is 'evry:2'",
        "give every:N or blocks:K with a whole number of at least 1",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --checkpoint every:0",
        "checkpoint is 'every:0'",
        "give every:N or blocks:K with a whole number of at least 1",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --checkpoint every:x",
        "checkpoint is 'every:x'",
        "give every:N or blocks:K with a whole number of at least 1",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --checkpoint layers.7",
        "layers.7",
        "checkpoint",
        "allowed: 0, 1, 2, 3, 4, 5, 6, 7",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --checkpoint ''",
        "checkpoint is ''",
        "give a word such as none or all, or names of modules",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --microbatch-size 65",
        "65",
        "recipe against training settings",
        "give at most 64",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --microbatch-size 0", "microbatch_size is 0", "it must be at least 1"
    ),
    wrong(
        "estimate model.py:build --image-size 8 --microbatch-size nan",
        "microbatch_size is 'nan'",
        "it takes a whole number",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --lr -1",
        "-1",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --lr nan",
        "nan",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --lr inf",
        "inf",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong("estimate model.py:build --image-size 8 --lr 1e-4x", "1e-4x", "training settings", "it takes a number"),
    wrong(
        "estimate model.py:build --image-size 8 --betas 0.9",
        "training settings",
        "give two numbers from 0 to below 1, such as 0.9,0.999",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --betas 0.9,2",
        "training settings",
        "give two numbers from 0 to below 1, such as 0.9,0.999",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --betas a,b",
        "training settings",
        "give two numbers from 0 to below 1, such as 0.9,0.999",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --weight-decay -0.1",
        "-0.1",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong("estimate model.py:build --image-size 8 --clip-norm 0", "training settings", "it must be more than 0"),
    wrong(
        "estimate model.py:build --image-size 8 --seed -1",
        "-1",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --seed 99999999999999999999999",
        "99999999999999999999999",
        "training settings",
        "torch takes seeds below 2**64",
    ),
    wrong("estimate model.py:build --image-size 8 --epochs 0", "0", "training settings", "it must be at least 1"),
    wrong("estimate model.py:build --image-size 8 --max-steps 0", "0", "training settings", "it must be at least 1"),
    wrong(
        "estimate model.py:build --image-size 8 --warmup-steps -2",
        "-2",
        "training settings",
        "it must be a finite number of at least 0",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --adapter lora --adapter-rank 0",
        "adapter_rank is 0",
        "it must be at least 1",
    ),
    wrong("estimate model.py:build --image-size 8 --adapter qlora", "adapter is 'qlora'", "did you mean 'lora'"),
    wrong(
        "estimate model.py:build --image-size 8 --quantize nf4",
        "quantize='nf4' without an adapter",
        "Set adapter='lora', or leave quantize out",
    ),
    wrong("estimate model.py:build --image-size 8 --quantize int4", "quantize is 'int4'", "did you mean 'nf4'"),
    wrong(
        "estimate model.py:build --image-size 8 --workers -1",
        "workers is -1",
        "it must be 0 (load in the training process) to 256 processes",
    ),
    wrong("estimate model.py:build --image-size 8 --compile-memory-budget 2", "recipe: 2 problems"),
    wrong("estimate model.py:build --image-size 8 --attention flash3", "attention is 'flash3'", "did you mean 'flash'"),
    wrong(
        "estimate model.py:build --image-size 8 --offload-activations everything",
        "everything",
        "offload_activations",
        "allowed: 0, 1, 2, 3, 4, 5, 6, 7",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --step-in-backward --clip-norm 1",
        "recipe against training settings",
        "Leave one of them out",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --stochastic-rounding",
        "stochastic_rounding needs precision='bf16-true'",
        "precision is 'fp32'",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --stochastic-rounding=yes",
        "--stochastic-rounding/--no-stochastic-rounding",
        "see `snugfit estimate --help`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --no-inplace=3",
        "--inplace/--no-inplace",
        "see `snugfit estimate --help`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --freeze 'backbone.*'",
        "freeze pattern 'backbone.*' matches no parameter",
        "patterns that match: 0.*, 1.*, 4.*, 7.*",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --freeze '*'",
        "freeze '*' matches all 8 parameters",
        "Leave some out, for example the head",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --weights absent.safetensors",
        "weights file 'absent.safetensors' does not exist",
        "Give an existing .safetensors file",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg width",
        "model argument 'width' is not understood",
        "Write key=value, for example num_classes=10",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg depht=3",
        "model 'model.py:build' cannot be called with depht=3",
        "Its arguments: (num_classes=10, width=16, dropout=0.1)",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg width=wide",
        "model 'model.py:build' failed: TypeError: empty()",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg width=-4",
        "model 'model.py:build' failed: RuntimeError: Trying to",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg width=1 --model-arg width=2",
        "model argument 'width' is given twice",
        "Give it once",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg '=3'",
        "model argument '=3' is not understood",
        "Write key=value, for example num_classes=10",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --model-arg 'width=[1'",
        "model 'model.py:build' failed: TypeError: empty()",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --task image-clasification",
        "task 'image-clasification' is unknown",
        "did you mean 'image-classification'",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --task causal-lm",
        "--image-size has no meaning for causal-lm",
        "give --seq-len",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --seq-len 5",
        "--seq-len has no meaning for image-classification of 'model.py:build'",
        "Leave it out",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --frames 5",
        "--frames has no meaning for image-classification of 'model.py:build'",
        "Leave it out",
    ),
    wrong("estimate model.py:build --image-size 8 --frames 0", "0", "--frames", "see `snugfit estimate --help`"),
    wrong(
        "estimate hf:llama/config.json --task image-classification",
        "image-classification",
        "model 'hf:llama/config.json' has no class in transformers for",
        "give --task causal-lm or token-classification or",
    ),
    wrong(
        "estimate hf:llama/config.json --seq-len 65 --batch-size 2",
        "--seq-len is 65",
        "the model takes at most 64 tokens",
    ),
    wrong("estimate hf:llama/config.json --seq-len 0", "0", "--seq-len", "see `snugfit estimate --help`"),
    wrong("estimate hf:llama/config.json --seq-len -4", "-4", "--seq-len", "see `snugfit estimate --help`"),
    wrong(
        "estimate hf:llama/config.json --model-arg hiden_size=3",
        "hf:llama/config.json",
        "model argument 'hiden_size' is no field of the config of",
        "did you mean 'hidden_size'",
    ),
    wrong(
        "estimate hf:llama/config.json --model-arg hidden_size=wide",
        "hf:llama/config.json",
        "model argument hidden_size='wide' is not taken by the config of",
    ),
    wrong(
        "estimate hf:llama/config.json --model-arg vocab_size=0 --seq-len 8 --batch-size 2",
        "the step cannot run",
        "Check that model, batch and loss fit each other",
    ),
    wrong(
        "estimate torchvision:resnet18 --model-arg num_classes=ten --batch-size 2 --image-size 32",
        "model torchvision:resnet18 could not be built with num_classes='ten'",
        "Check the model arguments",
    ),
    wrong(
        "estimate torchvision:resnet18 --model-arg clases=10",
        "model torchvision:resnet18 could not be built with clases=10",
        "Check the model arguments",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --assume",
        "--assume",
        "expected one argument",
        "see `snugfit estimate --help`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --assume nonzero", "assume: nonzero needs a value, such as nonzero=0.5"
    ),
    wrong("estimate model.py:build --image-size 8 --assume nonzero=2", "nonzero is 2.0", "it is a share, from 0 to 1"),
    wrong("estimate model.py:build --image-size 8 --assume nonzero=x", "nonzero is 'x'", "it takes a number"),
    wrong(
        "estimate model.py:build --image-size 8 --assume lossfinite",
        "'lossfinite' is unknown",
        "did you mean 'loss_finite'",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --assume loss_finite=maybe",
        "loss_finite is 'maybe'",
        "give loss_finite=true or loss_finite=false",
    ),
    wrong("estimate model.py:build --image-size 8 --assume integer=-1", "integer is -1", "it must be at least 0"),
    wrong(
        "estimate model.py:build --image-size 8 --timeline t.txt",
        "--timeline 't.txt': the file's ending says the format:",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --timeline nowhere/t.html",
        "--timeline 'nowhere/t.html' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --timeline model.py/t.html",
        "--timeline 'model.py/t.html' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --timeline empty_folder",
        "--timeline 'empty_folder': the file's ending says the",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --snapshot empty_folder",
        "--snapshot 'empty_folder' is a folder",
        "give the name of a file, such as empty_folder/snapshot",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --snapshot /proc/nope.pickle",
        "--snapshot '/proc/nope.pickle' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --timeline /proc/nope.html",
        "--timeline '/proc/nope.html' cannot be written",
        "Give a file in a folder that exists and can be written to",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --timeline ''",
        "--timeline",
        "'' names no file or folder",
        "see `snugfit estimate --help`",
    ),
    wrong(
        "estimate model.py:build --image-size 8 --budget 8GiB",
        "unknown option '--budget'",
        "see `snugfit estimate --help`",
    ),
    wrong("estimate model.py:build --image-size 8 --devise l4", "unknown option '--devise'", "did you mean '--device'"),
    wrong(
        "estimate model.py:build --image-size 8 extra", "unexpected argument 'extra'", "see `snugfit estimate --help`"
    ),
    wrong(
        "estimate model.py:build model.py:raises",
        "unexpected argument 'model.py:raises'",
        "see `snugfit estimate --help`",
    ),
    wrong("estimate model.py:build --image-size=", "--image-size", "see `snugfit estimate --help`"),
    wrong("estimate --image-size 8", "the following arguments are required", "see `snugfit estimate --help`"),
    wrong("estimate -- model.py:raises", "model 'model.py:raises' failed: RuntimeError: no such layer"),
    wrong(
        "estimate model.py:build --image-size 8 --json=yes",
        "ignored explicit argument 'yes'",
        "see `snugfit estimate --help`",
    ),
    wrong("estimate model.py:build -b 8", "unknown option '-b'", "see `snugfit estimate --help`"),
    wrong(
        "estimate model.py:build --image-size 8 --gpus 2", "unknown option '--gpus'", "see `snugfit estimate --help`"
    ),
    wrong(
        "estimate model.py:build --image-size 8 --adapter-rank 16",
        "adapter_rank without an adapter",
        "set adapter='lora' (or rslora, dora), or leave that out",
    ),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.words)
def test_a_wrong_line_is_told_what_was_given_and_what_to_do(broken_folder, capsys, line):
    check(line, broken_folder, capsys)
