import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Sums in a fixed order, and one core for each test process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
