"""dnode's cnn in PyTorch, made from a checkpoint alone."""
import torch
from torch import nn


class Cnn(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.height, self.width = config["height"], config["width"]
        first, second = config["channels"]
        features = (self.height // 4) * (self.width // 4) * second
        self.convolution0 = nn.Conv2d(1, first, config["kernel"], padding=config["padding"])
        self.convolution1 = nn.Conv2d(first, second, config["kernel"], padding=config["padding"])
        self.pool = nn.MaxPool2d(config["pooling"])
        self.hidden = nn.Linear(features, config["hidden"])
        self.output = nn.Linear(config["hidden"], config["classes"])

    def forward(self, pixels):
        x = pixels.view(-1, 1, self.height, self.width)
        x = self.pool(torch.relu(self.convolution0(x)))
        x = self.pool(torch.relu(self.convolution1(x)))
        x = x.permute(0, 2, 3, 1).flatten(1)  # row, column, channel
        return self.output(torch.relu(self.hidden(x)))


def load(told, tensors):
    assert told["model"]["kind"] == "cnn" and told["model"]["activation"] == "relu"
    for name in ("convolution0.weight", "convolution1.weight"):  # output, row, column, input
        tensors[name] = tensors[name].permute(0, 3, 1, 2).contiguous()
    model = Cnn(told["model"])
    model.load_state_dict(tensors)
    return model.eval()
