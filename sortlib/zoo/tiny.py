"""Two example models of a few milliseconds: a residual network and a vision transformer.

A zoo file names them as custom models, ``sortlib.zoo.tiny:ResidualNet``. They serve as test models: both hold a
residual block and end in pooling, dropout and a linear layer, so that they share patterns, one with a join.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, added to their input (He et al. 2016)."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(out)) + x)


class ResidualNet(nn.Module):
    """Images (batch, 3, height, width) to logits (batch, classes); height and width divisible by 4."""

    def __init__(self, channels=8, blocks=2, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.pool = nn.MaxPool2d(2)
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(blocks)))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.blocks(self.pool(F.relu(self.norm(self.stem(x)))))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        return self.head(self.dropout(x))


class TransformerBlock(nn.Module):
    """Self-attention and a two-layer perceptron, each after layer norm and added to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def attention(self, x):
        batch, tokens, width = x.shape
        shape = batch, tokens, self.heads, width // self.heads
        query, key, value = (part(x).reshape(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        weights = F.softmax(torch.matmul(query, key.transpose(-2, -1)) * shape[-1] ** -0.5, dim=-1)
        mixed = torch.matmul(weights, value).transpose(1, 2).reshape(batch, tokens, width)
        return self.dropout(self.out(mixed))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class VisionTransformer(nn.Module):
    """Images (batch, 3, size, size) to logits (batch, classes); ``size`` divisible by 8.

    A convolutional stem makes the tokens (Xiao et al. 2021, "Early convolutions help transformers see better").
    """

    def __init__(self, size=32, width=16, heads=2, depth=2, classes=10):
        super().__init__()
        self.grid = size // 8
        self.stem = nn.Conv2d(3, width, 3, stride=4, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.stem_block = ResidualBlock(width)
        self.embed = nn.Conv2d(width, width, 2, stride=2)
        self.position = nn.Parameter(0.02 * torch.randn(1, self.grid**2, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem_block(F.relu(self.stem_norm(self.stem(x))))
        x = torch.flatten(self.embed(x), 2).transpose(1, 2) + self.position
        x = self.norm(self.blocks(x))
        x = x.transpose(1, 2).reshape(len(x), -1, self.grid, self.grid)
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        return self.head(self.dropout(x))
