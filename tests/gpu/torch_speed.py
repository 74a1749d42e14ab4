"""Print the images a second of PyTorch's ResNet-50: 224 pixels, 256 images, channels last, autocast to float16.

It runs with a Python that has PyTorch, which needs nothing of dimred: python3 torch_speed.py [--small]
"""

import sys
import time

import torch
import torchvision

N_STEPS = 20


def main() -> None:
    """Train on one batch, and print the rate, the card and PyTorch's version."""
    is_small = "--small" in sys.argv
    device, n_images, size = ("cpu", 4, 64) if is_small else ("cuda", 256, 224)
    torch.backends.cudnn.benchmark = True
    network = torchvision.models.resnet50(num_classes=1001).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9)
    loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    x = torch.randn(n_images, 3, size, size, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 1000, (n_images,), device=device)

    def steps(n_steps: int) -> float:
        begun = time.perf_counter()
        for _ in range(n_steps):
            with torch.autocast(device, torch.float16, enabled=not is_small):
                value = loss(network(x), y)
            (value * 1024).backward()
            optimizer.step()
            optimizer.zero_grad()
        value.item()  # waits for the device
        return time.perf_counter() - begun

    steps(5)
    rate = N_STEPS * n_images / steps(N_STEPS)
    name = "CPU" if is_small else torch.cuda.get_device_name()
    print(f"{rate:.0f} images a second, {name}, PyTorch {torch.__version__}")


if __name__ == "__main__":
    main()
