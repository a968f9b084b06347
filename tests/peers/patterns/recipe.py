"""The pattern of PyTorch's AMP recipe: a plain loop, autocast, GradScaler, both; clipping; saving and resuming."""

import torch


def make_model(in_size, out_size, num_layers):
    layers = []
    for _ in range(num_layers - 1):
        layers += [torch.nn.Linear(in_size, in_size), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(in_size, out_size)).to(device)


device = "cuda" if torch.cuda.is_available() else "cpu"
low = torch.float16 if device == "cuda" else torch.bfloat16
torch.set_default_device(device)
torch.backends.cudnn.benchmark = True
data = [torch.randn(32, 64) for _ in range(2)]
targets = [torch.randn(32, 16) for _ in range(2)]
loss_fn = torch.nn.MSELoss().to(device)

for use_amp in (False, True):
    net = make_model(64, 16, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler(device, enabled=use_amp)
    for _ in range(2):
        for input, target in zip(data, targets):
            with torch.autocast(device_type=device, dtype=low, enabled=use_amp):
                output = net(input)
                assert output.dtype is (low if use_amp else torch.float32)
                loss = loss_fn(output, target)
                assert loss.dtype is torch.float32
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=0.1)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)

checkpoint = {"model": net.state_dict(), "optimizer": opt.state_dict(), "scaler": scaler.state_dict()}
torch.save(checkpoint, "checkpoint.pt")
checkpoint = torch.load("checkpoint.pt", map_location=lambda storage, location: storage)
net.load_state_dict(checkpoint["model"])
opt.load_state_dict(checkpoint["optimizer"])
scaler.load_state_dict(checkpoint["scaler"])
with torch.autocast(device_type=device, dtype=low), torch.inference_mode():
    print(loss_fn(net(data[0]), targets[0]).item())
