"""Scripts that push to Hugging Face's hub are estimated without it."""

import json

from command_line import run_command

PUSHES = """
import torch
from huggingface_hub import HfApi, create_repo, login, whoami
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments

login(token="hf_" + "a" * 34)
assert whoami()["name"] == HfApi().whoami()["name"]
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
model = LlamaForCausalLM(LlamaConfig(**sizes))
samples = [{"input_ids": torch.arange(20), "labels": torch.arange(20)} for _ in range(16)]
arguments = TrainingArguments("out", max_steps=2, save_steps=1, report_to=[], push_to_hub=True, hub_strategy="every_save")
Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).save("tokenizer.json")
tokenizer = PreTrainedTokenizerFast(tokenizer_file="tokenizer.json", pad_token="b")
trainer = Trainer(model, arguments, train_dataset=samples, processing_class=tokenizer)
trainer.train()
trainer.push_to_hub("the end")
model.push_to_hub("mine")
assert create_repo("mine", exist_ok=True).repo_id.endswith("/mine")
assert HfApi().create_repo(repo_id="their/model").repo_id == "their/model"
assert create_repo("data", repo_type="dataset").repo_type == "dataset"
HfApi().create_tag("their/model", tag="first")
assert PreTrainedTokenizerFast.from_pretrained("out").get_vocab() == tokenizer.get_vocab()
print("came to its end")
"""


def test_nothing_is_pushed(tmp_path):
    (tmp_path / "train.py").write_text(PUSHES)
    done = run_command("estimate", "--device", "cpu", "--json", "train.py", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["steps"] == 2, done.stderr
    assert "came to its end" in done.stderr and "snugfit:" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
