"""An embedding table of 50,000 rows, sharded over all workers; changed lines end in `# changed`.

$ partreduce run --workers 4 --simulate-nodes 2 examples/embedding_table.py 2x2
[0] 0.weight (50,000 x 64, 12.8 MB; a worker touches 0.88% of its rows in a step, ...): sharded, 2.988 ms and ...
[0] workers of a node do not agree on rows before they cross: 2.988 ms a step for all that is sent and visited, ...
[0] loss 0.645, 3200130 numbers
"""

import sys

import torch

import partreduce  # changed

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.EmbeddingBag(50_000, 64), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
# Random rows; small indices come most often, as frequent words do.
words = [(torch.rand(64, 8) ** 4 * 50_000).long() for _ in range(48)]
words = partreduce.shard_dataset(words)  # changed
model, optimizer = partreduce.parallelize_embeddings(model, optimizer, sys.argv[1], batches=words)  # changed
for batch in words:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), (batch.float().mean(1) > 10_000).long())
    loss.backward()
    partreduce.clip_grad_norm_(model.parameters(), 1.0)  # changed
    optimizer.step()
optimizer.finish()  # changed
state = model.state_dict()  # all workers call it; worker 0 has the whole table
if optimizer.rank == 0:
    print(*optimizer.reasons, f"loss {loss.item():.3f}, {sum(v.numel() for v in state.values())} numbers", sep="\n")
