"""LoRA on a small GPT-2: 5 steps of AdamW on the adapters alone, saved, loaded, and merged into the weights."""

import logging
import warnings

import torch
from job import PRECISION, say, start, timed
from transformers import GPT2Config, GPT2LMHeadModel

warnings.filterwarnings("ignore")
logging.getLogger("transformers").setLevel(logging.ERROR)
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402  # after its warnings are off

PACKAGES = ("peft", "transformers")
PRECISIONS = ("float32", "float16", "bfloat16")


def base():
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0)  # fmt: skip
    return start(GPT2LMHeadModel(config))


config = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM", fan_in_fan_out=True)
model = get_peft_model(base(), config)
adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
with torch.no_grad():
    for number, parameter in enumerate(adapters):
        if float(parameter.abs().max()):  # A; B is zero
            values = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
            parameter.copy_(torch.sin(values + number) / 8)
say("trainable", *model.get_nb_trainable_parameters())
optimizer = torch.optim.AdamW(adapters, lr=1e-2)
tokens = torch.arange(4 * 24).reshape(4, 24) ** 2 % 89
mixed = torch.autocast("cpu", getattr(torch, PRECISION), enabled=PRECISION != "float32")
with timed():
    for _ in range(5):
        with mixed:
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        say("loss", loss)
model.save_pretrained("adapter")
again = PeftModel.from_pretrained(base(), "adapter").eval()
with torch.no_grad():
    say("again", again(input_ids=tokens).logits)
    with model.disable_adapter():
        say("without", model(input_ids=tokens).logits)
    say("merged", again.merge_and_unload()(input_ids=tokens).logits)
