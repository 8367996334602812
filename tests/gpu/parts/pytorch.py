"""Steps of PyTorch on a GPU, from a first sum to the replay of a captured graph. Each is compared with the processor's result."""

import faulthandler
import time
import traceback

faulthandler.enable()

begun = time.perf_counter()
import torch

GPU = "cuda"


def close(found, wanted, tolerance):
    """Raises unless the largest difference is within the tolerance, relative to the largest value."""
    found, wanted = found.float().cpu(), wanted.float().cpu()
    error = (found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6)
    assert error <= tolerance, f"relative error {error:.2e} exceeds {tolerance:.0e}"
    return f"relative error {error:.1e}"


def first_sum():
    assert (torch.ones(1000, device=GPU) + 1).sum().item() == 2000
    return torch.cuda.get_device_name()


def round_trip():
    values = torch.randn(16 << 20)
    assert torch.equal(values.to(GPU).cpu(), values)
    return "64 MiB there and back"


def matmul(type_, size, tolerance):
    a, b = torch.randn(size, size), torch.randn(size, size)
    a, b = a.to(type_), b.to(type_)
    return close(a.to(GPU) @ b.to(GPU), a.float() @ b.float(), tolerance)


def convolution():
    layer, images = torch.nn.Conv2d(16, 32, 3, padding=1), torch.randn(8, 16, 32, 32)
    wanted = layer(images)
    return close(layer.to(GPU)(images.to(GPU)), wanted, 1e-4)


def attention():
    q, k, v = (torch.randn(2, 4, 128, 64) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    on_gpu = attend(*(x.to(GPU, torch.bfloat16) for x in (q, k, v)))
    return close(on_gpu, attend(q, k, v), 3e-2)


def training():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(GPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(512, 64, device=GPU)
    y = x.square().sum(1, keepdim=True) / 64
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, f"the loss went from {losses[0]:.4f} to {losses[-1]:.4f}"
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f}"


def graph_replay():
    weight, x = torch.randn(256, 256, device=GPU) / 16, torch.randn(64, 256, device=GPU)
    step = lambda: torch.relu(x @ weight) + 1
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(64, 256))
        graph.replay()
        close(y, torch.relu(x.cpu() @ weight.cpu()) + 1, 1e-4)
    return "3 replays"


def large_matmuls():
    a = torch.randn(4096, 4096, device=GPU, dtype=torch.bfloat16)
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    return f"{50 * 2 * 4096**3 / seconds / 1e12:.0f} TFLOP/s"


def small_operations():
    x = torch.zeros(1024, device=GPU)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(5000):
        x.add_(1)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    assert x[7].item() == 5000
    return f"{seconds / 5000 * 1e6:.1f} us each"


STEPS = {
    "sum": first_sum,
    "copies": round_trip,
    "matmul of float32": lambda: matmul(torch.float32, 512, 1e-5),
    "matmul of bfloat16": lambda: matmul(torch.bfloat16, 512, 1e-2),
    "convolution": convolution,
    "attention": attention,
    "training for 20 steps": training,
    "graph replay": graph_replay,
    "5,000 small operations": small_operations,
    "50 large matmuls": large_matmuls,
}

torch.manual_seed(0)
print(f"{'import of torch ' + torch.__version__:<32} ok   {time.perf_counter() - begun:7.3f} s", flush=True)
for name, run in STEPS.items():
    begun = time.perf_counter()
    try:
        state, said = "ok", run()
        torch.cuda.synchronize()
    except Exception as error:
        state, said = "FAIL", (traceback.format_exception_only(error)[-1].strip().splitlines() or [""])[0]
    print(f"{name:<32} {state:<4} {time.perf_counter() - begun:7.3f} s  {said}", flush=True)
