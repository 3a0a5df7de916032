"""Sum the ranks of all processes: the smallest job in which every process must find every other one."""

import datetime
import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
value = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(value)
print(
    f"rank {dist.get_rank()} of {dist.get_world_size()} on {socket.gethostname()} "
    f"(local rank {os.environ.get('LOCAL_RANK')}, master {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}): "
    f"sum {value.item():g}",
    flush=True,
)
dist.destroy_process_group()
