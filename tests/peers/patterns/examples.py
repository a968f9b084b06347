"""The patterns of PyTorch's page of AMP examples, one function each, on the older and the newer names."""

import torch
from torch import autocast, nn, optim
from torch.amp import GradScaler, custom_bwd, custom_fwd
from torch.cuda.amp import GradScaler as CudaGradScaler
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
low = torch.float16 if device == "cuda" else torch.bfloat16
data = [(torch.randn(8, 16, device=device), torch.randn(8, 4, device=device)) for _ in range(4)]
loss_fn = nn.MSELoss()
Net = lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).to(device)


def region():
    return autocast(device_type=device, dtype=low)


def typical():
    model = Net()
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.01), GradScaler(device)
    for input, target in data:
        optimizer.zero_grad()
        with region():
            loss = loss_fn(model(input), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def accumulation():
    model = Net()
    optimizer, scaler = optim.AdamW(model.parameters(), lr=0.01), GradScaler(device)
    for i, (input, target) in enumerate(data):
        with region():
            loss = loss_fn(model(input), target) / 2
        scaler.scale(loss).backward()
        if (i + 1) % 2 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def penalty():
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(device)
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.01), GradScaler(device, init_scale=2.0**8)
    for input, target in data:
        optimizer.zero_grad()
        with region():
            loss = loss_fn(model(input), target)
        scaled = torch.autograd.grad(outputs=scaler.scale(loss), inputs=model.parameters(), create_graph=True)
        grads = [p * (1.0 / scaler.get_scale()) for p in scaled]
        with region():
            norm = 0
            for grad in grads:
                norm += grad.pow(2).sum()
            loss = loss + norm.sqrt()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def several():
    models = [Net(), Net()]
    optimizers = [optim.SGD(models[0].parameters(), lr=0.01), optim.Adam(models[1].parameters(), lr=0.01)]
    scaler = GradScaler(device)
    for input, target in data:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with region():
            outputs = [model(input) for model in models]
            loss0 = loss_fn(2 * outputs[0] + 3 * outputs[1], target)
            loss1 = loss_fn(3 * outputs[0] - 5 * outputs[1], target)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizers[0])
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


class MyMM(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type=device)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @custom_bwd(device_type=device)
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad.mm(b.t()), a.t().mm(grad)


class MyFloat32Func(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type=device, cast_inputs=torch.float32)
    def forward(ctx, input):
        ctx.save_for_backward(input)
        assert input.dtype is torch.float32 and not torch.is_autocast_enabled(device)
        return input.exp()

    @staticmethod
    @custom_bwd(device_type=device)
    def backward(ctx, grad):
        (input,) = ctx.saved_tensors
        return grad * input.exp()


def functions():
    weight = nn.Parameter(torch.randn(16, 4, device=device) * 0.1)
    optimizer, scaler = optim.SGD([weight], lr=0.01), GradScaler(device)
    for input, target in data:
        optimizer.zero_grad()
        with region():
            loss = loss_fn(MyFloat32Func.apply(MyMM.apply(input, weight)), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def nested():
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    for input, target in data:
        with region():
            hidden = model[:2](input)
            with autocast(device_type=device, enabled=False):
                hidden = model[2](hidden.float())
            loss = loss_fn(checkpoint(model[3], hidden, use_reentrant=False), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


class AutocastedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    @autocast(device_type=device, dtype=low)
    def forward(self, input):
        return self.net(input)


def replicas():
    model = nn.DataParallel(AutocastedModel())
    optimizer, scaler = optim.SGD(model.parameters(), lr=0.01), CudaGradScaler(enabled=torch.cuda.is_available())
    for input, target in data:
        with torch.cuda.amp.autocast(enabled=torch.cuda.is_available()):
            loss = loss_fn(model(input), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


for pattern in (typical, accumulation, penalty, several, functions, nested, replicas):
    pattern()
