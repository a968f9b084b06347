"""A GPT-2 of width 256 and 4 layers in Trainer, 12 steps of 8 x 128 tokens, without evaluation."""

import logging
import warnings

from gpt import Clock, rows
from job import PRECISION, autocast_to_float16, say, start
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

PACKAGES = ("transformers", "accelerate")
PRECISIONS = ("float32", "float16", "bfloat16")

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)


class Steps(TrainerCallback):
    clock = Clock()

    def on_step_begin(self, args, state, control, **more):
        self.clock.step()

    def on_train_end(self, args, state, control, **more):
        self.clock.end()

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            say("loss", logs["loss"])


set_seed(0)
config = GPT2Config(vocab_size=1000, n_positions=128, n_embd=256, n_layer=4, n_head=8, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0)  # fmt: skip
options = TrainingArguments(
    "run", max_steps=12, per_device_train_batch_size=8, learning_rate=1e-3, logging_steps=1, save_strategy="no",
    use_cpu=True, report_to="none", disable_tqdm=True, fp16=PRECISION == "float16",
    bf16=PRECISION == "bfloat16", train_sampling_strategy="sequential",
)  # fmt: skip
data = [{"input_ids": row, "labels": row} for row in rows()[: 12 * 8]]
trainer = Trainer(start(GPT2LMHeadModel(config)), options, train_dataset=data, callbacks=[Steps()])
autocast_to_float16(trainer.accelerator)
trainer.train()
