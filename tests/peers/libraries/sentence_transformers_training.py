"""A small BERT with pooling as a SentenceTransformer: trained on pairs, saved, loaded, and sentences encoded."""

import logging
import warnings
from pathlib import Path

from job import PRECISION, say, start, timed

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
from datasets import Dataset  # noqa: E402
from sentence_transformers import (  # noqa: E402
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
    models,
    util,
)
from transformers import BertConfig, BertModel, BertTokenizerFast, TrainerCallback, set_seed  # noqa: E402

PACKAGES = ("sentence-transformers", "transformers", "datasets")
PRECISIONS = ("float32", "bfloat16")


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **more):
        for name in ("loss", "grad_norm"):
            if name in logs:
                say(name, logs[name])


set_seed(0)
words = [f"w{n}" for n in range(60)]
Path("vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
config = BertConfig(vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                    max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
start(BertModel(config)).save_pretrained("base")
BertTokenizerFast("vocab.txt").save_pretrained("base")
encoder = models.Transformer("base", max_seq_length=24)
model = SentenceTransformer(modules=[encoder, models.Pooling(32), models.Normalize()], device="cpu")
anchors = [" ".join(words[n * k % 60] for k in range(8)) for n in range(1, 33)]
others = [" ".join(words[n * k % 59] for k in range(7)) for n in range(1, 33)]
data = Dataset.from_dict({"anchor": anchors, "positive": others})
options = SentenceTransformerTrainingArguments(
    "run", max_steps=6, per_device_train_batch_size=32, learning_rate=1e-3, logging_steps=1, save_strategy="no",
    use_cpu=True, report_to="none", disable_tqdm=True, bf16=PRECISION == "bfloat16",
    train_sampling_strategy="sequential",
)  # fmt: skip
loss = losses.MultipleNegativesRankingLoss(model)
trainer = SentenceTransformerTrainer(model, options, data, loss=loss, callbacks=[Losses()])
with timed():
    trainer.train()
model.save("saved")
again = SentenceTransformer("saved", device="cpu")
found = again.encode(anchors[:3], convert_to_tensor=True)
say("embeddings", found)
say("similar", util.cos_sim(found, model.encode(others[:3], convert_to_tensor=True)))
