"""dnode's mlp in PyTorch, made from a checkpoint alone."""
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        widths = [config["inputs"], *config["hidden"], config["classes"]]
        self.layers = len(widths) - 1
        for index in range(self.layers):
            self.add_module(f"layer{index}", nn.Linear(widths[index], widths[index + 1]))

    def forward(self, pixels):
        x = pixels
        for index in range(self.layers):
            x = self.get_submodule(f"layer{index}")(x)
            x = torch.relu(x) if index + 1 < self.layers else x
        return x


def load(told, tensors):
    assert told["model"]["kind"] == "mlp" and told["model"]["activation"] == "relu"
    model = Mlp(told["model"])
    model.load_state_dict(tensors)
    return model.eval()
