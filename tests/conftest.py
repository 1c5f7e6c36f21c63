"""Two workers share two cores: a torch that spins on both in each of them would only wait for itself."""

import torch

torch.set_num_threads(1)
