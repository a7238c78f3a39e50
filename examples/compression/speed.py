"""How fast each codec is on this machine, on one thread, against copying memory.

    python examples/compression/speed.py [--mebibytes 4] [--seconds 0.5] [CODEC ...]

Rates are megabytes of float32 a second, best of many rounds. The tensor holds normal numbers in rows of 1024, which
zstd finds harder than real activations; for int8 they make no difference.
"""

import argparse
import time
from collections.abc import Callable

import torch

from brigade.compression.codec import build_codec
from brigade.compression.spec import bytes_per_element

CODECS = (
    "raw",
    "raw+zstd",
    "bf16",
    "bf16+zstd",
    "fp16",
    "fp16+zstd",
    "int8",
    "int8+zstd",
    "int8:block=256",
    "int8:rounding=stochastic",
    "int8:rounding=stochastic+zstd",
)


def best_s(action: Callable[[], object], seconds: float) -> float:
    """Return the shortest time of one call, calling for so many seconds."""
    best = float("inf")
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        action()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("codecs", nargs="*", default=CODECS, metavar="CODEC")
    parser.add_argument("--mebibytes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensor = torch.randn(options.mebibytes * 256, 1024, generator=torch.Generator().manual_seed(0))
    megabytes = tensor.nbytes / 1e6
    target = torch.empty_like(tensor)
    copy = megabytes / best_s(lambda: target.copy_(tensor), options.seconds)
    clone = megabytes / best_s(tensor.clone, options.seconds)
    print(
        f"float32 tensor of {options.mebibytes} MiB, one thread; "
        f"memcpy {copy:,.0f} MB/s, into new memory {clone:,.0f} MB/s\n"
    )
    print("| codec | bytes/element | ratio here | relative error | encode MB/s | decode MB/s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for text in options.codecs:
        codec = build_codec(text)
        frames = codec.encode(tensor)
        again = codec.decode(frames, tensor.dtype, tensor.shape)
        encode = megabytes / best_s(lambda codec=codec: codec.encode(tensor), options.seconds)
        decode = megabytes / best_s(
            lambda codec=codec, frames=frames: codec.decode(frames, tensor.dtype, tensor.shape), options.seconds
        )
        ratio = tensor.nbytes / sum(map(len, frames))
        error = float((again - tensor).norm() / tensor.norm())
        size = bytes_per_element(text, "float32")
        rate = f"{encode:,.0f}" if text != "raw" else "view"
        print(f"| `{text}` | {size:.3f} | {ratio:.2f} | {error:.5f} | {rate} | {decode:,.0f} |")


if __name__ == "__main__":
    main()
