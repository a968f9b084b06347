"""A GPT-2 of width 256 and 4 layers in Trainer, 12 steps of 8 x 128 tokens, without evaluation."""

import logging
import time
import warnings

import torch
from job import PRECISION, say, start
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

PACKAGES = ("transformers", "accelerate")
PRECISIONS = ("float32", "bfloat16")

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)


class Steps(TrainerCallback):
    def on_step_begin(self, args, state, control, **more):
        if state.global_step == 2:  # the first steps allocate, and compile on some backends
            self.began = time.perf_counter()

    def on_train_end(self, args, state, control, **more):
        print("SECONDS", time.perf_counter() - self.began, flush=True)

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            say("loss", logs["loss"])


set_seed(0)
config = GPT2Config(vocab_size=1000, n_positions=128, n_embd=256, n_layer=4, n_head=8, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0)  # fmt: skip
tokens = torch.arange(96 * 128).reshape(96, 128) ** 2 % 997
options = TrainingArguments(
    "run", max_steps=12, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=1, save_strategy="no",
    use_cpu=True, report_to="none", disable_tqdm=True, bf16=PRECISION == "bfloat16",
    train_sampling_strategy="sequential",
)  # fmt: skip
data = [{"input_ids": row, "labels": row} for row in tokens]
Trainer(start(GPT2LMHeadModel(config)), options, train_dataset=data, callbacks=[Steps()]).train()
