"""Handwritten digits in float16, by hand: every line of mixed-precision training, and no more."""

import ampkit
from ampkit import nn, ops, optim
from ampkit.data import digits
from ampkit.utils.data import DataLoader, TensorDataset

ampkit.manual_seed(0)

images, labels = (ampkit.tensor(part) for part in digits.load("train"))
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 2 * 2, 10),
)  # fmt: skip
optimizer = optim.AdamW(model.parameters(), lr=3e-3)
scaler = ampkit.GradScaler()  # keeps small gradients above float16's smallest number

for epoch in range(5):
    for x, y in loader:
        with ampkit.autocast(dtype=ampkit.float16):  # products in float16, sums and the loss in float32
            loss = ops.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # skips the step if a gradient overflowed
        scaler.update()
        optimizer.zero_grad()
    print(f"epoch {epoch + 1}  loss {loss.item():.3f}  scale {scaler.get_scale():g}")

model.eval()
images, labels = (ampkit.tensor(part) for part in digits.load("test"))
with ampkit.no_grad(), ampkit.autocast(dtype=ampkit.float16):
    right = (model(images).argmax(1) == labels).sum()
print(f"{right.item() / len(labels):.1%} of {len(labels)} digits that it had not seen")
