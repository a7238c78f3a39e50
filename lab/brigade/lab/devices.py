"""Devices by name, for scenarios: what each needs for 10^9 operations, and where the number comes from.

Sustained is taken to be 40 % of the peak in 32-bit floats, within what training reaches (21 to 46 % of the peak: PaLM,
arXiv 2204.02311, table 3). Peak is 2 x units x clock, one multiply-add a unit and cycle, with the clocks and units of
the vendors' product pages.
"""

from dataclasses import dataclass

from brigade.node.emulated_speed import EmulatedSpeed

SUSTAINED = 0.4


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its peak, 10^9 operations a second in 32-bit floats."""

    peak_gflops: float
    source: str

    @property
    def speed(self) -> EmulatedSpeed:
        """What it is emulated as."""
        return EmulatedSpeed(s_per_gflop=1.0 / (SUSTAINED * self.peak_gflops))


DEVICES = {
    "raspberry-pi-5": Device(154, "4 Cortex-A76 at 2.4 GHz, 2 x 4 lanes each"),
    "laptop-cpu": Device(320, "4 cores with AVX2 at 2.5 GHz under load, 2 x 8 lanes each"),
    "desktop-cpu": Device(1024, "8 cores with AVX2 at 4 GHz, 2 x 8 lanes each"),
    "rtx-3060": Device(12_740, "3,584 CUDA cores at 1.777 GHz"),
    "rtx-4090": Device(82_580, "16,384 CUDA cores at 2.52 GHz"),
    "a100": Device(19_490, "6,912 CUDA cores at 1.41 GHz; without its tensor cores"),
}
