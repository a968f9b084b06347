"""A small GPT-2 and a small BERT in Trainer, with evaluation, a resumed run, and weights saved and loaded."""

import logging
import warnings

import torch
from job import PRECISION, autocast_to_float16, say, start, timed
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

PACKAGES = ("transformers", "accelerate")
PRECISIONS = ("float32", "float16", "bfloat16")

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
SMALL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


class Texts(Dataset):
    def __init__(self, count, labels):
        self.tokens, self.labels = torch.arange(count * 24).reshape(count, 24) ** 2 % 89, labels

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        label = self.tokens[index] if self.labels is None else index % self.labels
        return {"input_ids": self.tokens[index], "labels": label}


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        for name in ("loss", "grad_norm", "learning_rate", "eval_loss"):
            if name in logs:
                say(f"{args.run_name}_{name}", logs[name])


def trainer(name, model, steps, labels=None, **more):
    options = TrainingArguments(
        name, run_name=name, max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=1e-3, warmup_steps=2, weight_decay=0.01, logging_steps=1, save_steps=3, eval_steps=3,
        eval_strategy="steps", use_cpu=True, report_to="none", disable_tqdm=True, fp16=PRECISION == "float16",
        bf16=PRECISION == "bfloat16", train_sampling_strategy="sequential", **more,
    )  # fmt: skip
    data, held_out = Texts(64, labels), Texts(12, labels)
    made = Trainer(model, options, train_dataset=data, eval_dataset=held_out, callbacks=[Losses()])
    autocast_to_float16(made.accelerator)
    return made


def gpt():
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)  # fmt: skip
    return start(GPT2LMHeadModel(config))


set_seed(0)
first = trainer("gpt", gpt(), 6)
with timed():
    first.train()
say("gpt_metrics", first.evaluate()["eval_loss"])
first.save_model("weights")
second = trainer("gpt", gpt(), 6)
second.train(resume_from_checkpoint="gpt/checkpoint-3")
same = GPT2LMHeadModel.from_pretrained("weights")
tokens = torch.arange(10).reshape(1, 10)
with torch.no_grad():
    say("logits", same(tokens).logits, second.model.eval()(tokens).logits.float())
    say("tokens", same.generate(tokens[:, :4], max_new_tokens=6, do_sample=False, pad_token_id=0))

config = BertConfig(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                    max_position_embeddings=32, num_labels=3, **SMALL)  # fmt: skip
bert = trainer("bert", start(BertForSequenceClassification(config)), 4, labels=3, max_grad_norm=0.5,
               lr_scheduler_type="cosine")  # fmt: skip
bert.train()
found = bert.predict(Texts(6, 3))
say("predicted", found.predictions, found.metrics["test_loss"])
