"""Small transformers Trainers of models that are made here, without downloads."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 100,
    "max_position_embeddings": 64,
}  # fmt: skip


class Texts(torch.utils.data.Dataset):
    """Texts of which every tenth is twice as long."""

    def __init__(self, count=200):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        length = 64 if number % 10 == 0 else 32
        return {"input_ids": [number % 97 + 3] * length, "labels": number % 2}


def padded(samples):
    """Batches as a collator of the library makes them, from lists of numbers."""
    length = max(len(sample["input_ids"]) for sample in samples)
    rows = [sample["input_ids"] + [0] * (length - len(sample["input_ids"])) for sample in samples]
    ids = torch.tensor(rows)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([sample["labels"] for sample in samples]),
    }


class Counting(Trainer):
    """Keeps a metric, as TRL's trainers do: it selects by a mask of the data, and reads numbers."""

    kept = None
    """What leaks, where it is a list."""

    def compute_loss(self, model, inputs, return_outputs=False, **settings):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **settings)
        self.positive = outputs.logits[inputs["labels"].bool()].detach().sum().item()
        if self.kept is not None:
            self.kept.append(model.bert.embeddings(inputs["input_ids"]))
        return (loss, outputs) if return_outputs else loss


def trainer(folder, callbacks=(), *, evaluated=False, model=None, data=None, **settings):
    torch.manual_seed(0)
    model = model or BertForSequenceClassification(BertConfig(**SIZES))
    each = {"eval_strategy": "steps", "eval_steps": 4} if evaluated else {}
    given = {"max_steps": 6, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8, **each, **settings}
    arguments = TrainingArguments(
        str(folder), report_to=[], save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, **given
    )
    sets = {"train_dataset": Texts() if data is None else data, "eval_dataset": Texts(24) if evaluated else None}
    return Counting(model=model, args=arguments, data_collator=padded, callbacks=list(callbacks), **sets)
