"""Handwritten digits, trained by however many ranks there are: paceline run --ranks 2 --slow 1:3 digits.py"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import paceline

torch.manual_seed(0)
torch.set_num_threads(1)  # several ranks share this machine

digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32)
labels = torch.tensor(digits.target)
train, test = slice(0, 1437), slice(1437, None)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()

dataset = TensorDataset(images[train], labels[train])
session = paceline.Session(model, optimizer, dataset, batch_size=32, epochs=10)
for batch in session:
    loss = loss_fn(model(batch.inputs), batch.targets)
    loss.backward()
    session.step(loss)

with torch.no_grad():
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean()
print(f"rank {session.rank} of {session.world}: {100 * accuracy:.1f} % of the test digits are right")
