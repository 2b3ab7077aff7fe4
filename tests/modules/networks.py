"""Networks as people write them, small: nothing here knows of personafl."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

# --- images ----------------------------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        out += x if self.shortcut is None else self.shortcut(x)
        return F.relu(out, inplace=True)


class ResNet18(nn.Module):
    """He et al. 2016: four stages of two blocks; `width` is 64 in the paper."""

    def __init__(self, classes=10, width=64, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages, inputs = [], width
        for i, stride in enumerate((1, 2, 2, 2)):
            outputs = width * 2**i
            stages.append(nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs)))
            inputs = outputs
        self.layers = nn.ModuleList(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in self.layers:
            x = stage(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def frozen_resnet18(classes=10, width=64):
    """A backbone in evaluation mode that is not trained, with a new head."""
    net = ResNet18(classes, width)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("fc."))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    net.eval()
    net.fc.train()
    return net


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True), nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x):
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """Sandler et al. 2018, with fewer stages."""

    def __init__(self, classes=10, width=8):
        super().__init__()
        first = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6(inplace=True)]
        stages = [(1, width, 1), (4, 2 * width, 2), (4, 2 * width, 1)]
        inputs = width
        for expansion, outputs, stride in stages:
            first.append(InvertedResidual(inputs, outputs, stride, expansion))
            inputs = outputs
        self.features = nn.Sequential(*first)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(inputs, classes))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))


class ConvNeXtBlock(nn.Module):
    """Liu et al. 2022: depthwise convolution, layer norm over channels, stochastic depth, layer scale."""

    def __init__(self, channels, drop=0.1):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(0.1 * torch.ones(channels))
        self.drop = drop

    def forward(self, x):
        out = self.dwconv(x).permute(0, 2, 3, 1)
        out = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(out))))
        out = out.permute(0, 3, 1, 2)
        if self.training and self.drop:
            keep = torch.rand((x.shape[0], 1, 1, 1), device=x.device) >= self.drop
            out = out * keep / (1 - self.drop)
        return x + out


class ConvNeXt(nn.Module):
    def __init__(self, classes=10, channels=8):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 4, 4)
        self.block = ConvNeXtBlock(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((-2, -1)))


class ViT(nn.Module):
    """Dosovitskiy et al. 2021: patches, a class token, positions."""

    def __init__(self, classes=10, size=16, patch=4, width=16, heads=2, depth=2):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.encoder(x))[:, 0])


class UNet(nn.Module):
    """Ronneberger et al. 2015, one level."""

    def __init__(self, classes=3, width=4):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.middle = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, classes, 1)

    def forward(self, x):
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.middle(skip))], dim=1))


# --- sequences -------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A transformer with its usual dropout, on sequences of unequal length."""

    def __init__(self, vocabulary=20, width=16, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, classes)

    def forward(self, ids, mask):
        out = self.encoder(self.embedding(ids), src_key_padding_mask=mask == 0)
        share = mask.unsqueeze(-1).float()
        return self.head((out * share).sum(1) / share.sum(1))


class GRUClassifier(nn.Module):
    def __init__(self, features=5, hidden=8, classes=3):
        super().__init__()
        self.gru = nn.GRU(features, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, x):
        return self.head(self.gru(x)[0].mean(1))


class LSTMTagger(nn.Module):
    """A label for every token."""

    def __init__(self, vocabulary=20, hidden=8, tags=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(hidden, tags)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


class CharacterLM(nn.Module):
    """A language model: causal attention, input and output embeddings tied."""

    def __init__(self, vocabulary=20, width=16, length=12):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        return self.head(h + self.project(attended.transpose(1, 2).flatten(2)))


class SensorCNN(nn.Module):
    """A 1-D network with batch normalization, for windows of sensor data."""

    def __init__(self, channels=3, classes=4, width=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(channels, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, 5, padding=2), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, classes),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


# --- tables ----------------------------------------------------------------------------------------------------------


class TabularMLP(nn.Module):
    """Numbers beside categories, each category with an embedding."""

    def __init__(self, numbers=4, sizes=(5, 3), outputs=3):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(size, 3) for size in sizes])
        self.hidden = nn.Linear(numbers + 3 * len(sizes), 16)
        self.dropout = 0.2
        self.out = nn.Linear(16, outputs)

    def forward(self, numbers, categories):
        codes = [table(categories[:, i]) for i, table in enumerate(self.embeddings)]
        hidden = F.silu(self.hidden(torch.cat([numbers, *codes], 1)))
        return self.out(F.dropout(hidden, self.dropout, self.training))


class Regressor(nn.Module):
    def __init__(self, features=6):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, 16), nn.LayerNorm(16), nn.Tanh())
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


class CoxModel(nn.Module):
    """The logarithm of the relative risk."""

    def __init__(self, features=6):
        super().__init__()
        self.risk = nn.Linear(features, 1, bias=False)

    def forward(self, x):
        return self.risk(x)


def small_bert(classes=3):
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=classes,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()
