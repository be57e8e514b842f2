"""Small trainers of TRL, of a model and a tokenizer that are made here, without downloads."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def tokenizer():
    names = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(200))]
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def model():
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=204, intermediate_size=256, **sizes))


def words(start, count):
    return " ".join(f"w{(start + number) % 200}" for number in range(count))


def trainer(kind, folder, callbacks):
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    given = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "max_steps": 4, "bf16": False}
    given |= {"per_device_train_batch_size": 4, "dataloader_pin_memory": False}
    if kind == "sft":
        data = Dataset.from_dict({"text": [words(number, 60) for number in range(32)]})
        return SFTTrainer(
            model=model(), args=SFTConfig(str(folder), max_length=64, **given), train_dataset=data,
            processing_class=tokenizer(), callbacks=callbacks,
        )  # fmt: skip
    rows = {"prompt": 20, "chosen": 30, "rejected": 25}
    data = Dataset.from_dict({name: [words(at, count) for at in range(16)] for name, count in rows.items()})
    return DPOTrainer(
        model=model(), ref_model=model(), args=DPOConfig(str(folder), **given), train_dataset=data,
        processing_class=tokenizer(), callbacks=callbacks,
    )  # fmt: skip
