import sys

import torch

from speech import Recipe

if __name__ == "__main__":
    torch.set_num_threads(1)
    Recipe(epochs=int(sys.argv[1]) if len(sys.argv) > 1 else 12).fit()
