"""A learner of many processes: the ranks that torchrun starts, on one node or several.

    rank 0          drives the run: rollouts, services, record, checkpoints, its own service
    every rank      holds a part of the policies and computes when rank 0 says so

Rank 0 sees each policy as one object (`leader.ShardedPolicy`) that it uses as it uses a `Policy`;
each call is a command that all ranks of the policy carry out together (`ensemble.Ensemble`,
`member.Member`). What is computed is done by PyTorch's FSDP2, torch.distributed and
torch.distributed.checkpoint.
"""
