"""SFTTrainer of trl on a small GPT-2 and short texts."""

import logging
import warnings

import torch
from job import PRECISION, say, start, timed

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback, set_seed  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

PACKAGES = ("trl", "transformers", "datasets")
PRECISIONS = ("float32", "bfloat16")


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        for name in ("loss", "grad_norm", "mean_token_accuracy"):
            if name in logs:
                say(name, logs[name])


set_seed(0)
words = [f"w{n}" for n in range(95)]
tokenizer = Tokenizer(
    models.WordLevel({"<pad>": 0, "<eos>": 1, **{word: n + 2 for n, word in enumerate(words)}}, "<eos>")
)
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
config = GPT2Config(vocab_size=97, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0, pad_token_id=0, eos_token_id=1, bos_token_id=1)  # fmt: skip
texts = Dataset.from_dict({"text": [" ".join(words[(n * k) % 95] for k in range(20)) for n in range(1, 33)]})
options = SFTConfig(
    "run", max_steps=6, per_device_train_batch_size=4, learning_rate=1e-3, logging_steps=1, save_strategy="no",
    use_cpu=True, report_to="none", disable_tqdm=True, bf16=PRECISION == "bfloat16", fp16=False, max_length=32,
    gradient_checkpointing=False, train_sampling_strategy="sequential",
)  # fmt: skip
model = start(GPT2LMHeadModel(config))
trainer = SFTTrainer(model, options, train_dataset=texts, processing_class=fast, callbacks=[Losses()])
with timed():
    trainer.train()
with torch.no_grad():
    say("logits", trainer.model.eval()(torch.arange(10).reshape(1, 10)).logits.float())
