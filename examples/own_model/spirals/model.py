"""A residual classifier of points, as blocks. Nothing here imports Bucket Brigade."""

from torch import Tensor, nn


class Lift(nn.Module):
    """Points (N, 2) to features (N, width); the points go along for the blocks that want them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2, width)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(points).sin(), points


class Residual(nn.Module):
    """Adds to the features what it makes of features and points. A block takes one value: here a tuple."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.points = nn.Linear(2, width)
        self.inner = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, value: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        features, points = value
        inner = self.inner(self.norm(features) + self.points(points)).relu()
        return features + self.dropout(inner), points


class Head(nn.Module):
    """Features to one number for each arm."""

    def __init__(self, width: int, arms: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, arms)

    def forward(self, value: tuple[Tensor, Tensor]) -> Tensor:
        return self.linear(value[0])


def blocks(width: int = 64, depth: int = 4, arms: int = 3, dropout: float = 0.0) -> list[nn.Module]:
    """The model as the run file names it: `spirals.model:blocks`. Cuts are made between the blocks of this list."""
    return [Lift(width), *(Residual(width, dropout) for _ in range(depth)), Head(width, arms)]
