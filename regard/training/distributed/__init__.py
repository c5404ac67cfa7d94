"""Training by several processes: a model in shards, one loss, one process that writes.

    torchrun --nproc-per-node 4 -m regard train RECIPE

Each process ("rank" in torch) holds a part of every parameter and of the optimizer's state, and
gathers a layer's parameters while it computes that layer (FSDP2: Zhao et al. 2023, "PyTorch FSDP").
All make the same batches and each reads its rows of them, so that the number of processes changes
neither a batch nor their order. Losses and gradients are sums over all processes, divided by the
counts of the whole batch. The first process (rank 0) decides, validates and writes.

Where there is one process, `Processes` and `WholeModel` exchange nothing. Random numbers (dropout)
differ from process to process, and so with the number of processes.
"""
