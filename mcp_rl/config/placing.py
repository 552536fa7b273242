"""Contradictions between settings of processes and devices, each as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.config.run_settings import RunSettings


def placement_contradictions(config: RunSettings) -> Iterator[str]:
    """Yield a sentence for each contradiction between processes, devices and what they run."""
    placement, train = config.placement, config.train
    yield from _cluster_contradictions(config)
    learning, sampling = placement.learner_gpus, placement.engine_gpus
    for name, numbers in (("learner_gpus", learning), ("engine_gpus", sampling)):
        if twice := [number for number in numbers if numbers.count(number) > 1]:
            yield f"placement.{name} names GPU {twice[0]} twice: name each GPU once"
    shared = sorted(set(learning) & set(sampling))
    if shared and (len(learning) > 1 or len(sampling) > 1):
        yield (
            f"placement.learner_gpus and placement.engine_gpus both name GPU {shared[0]}: give each its own GPUs, or "
            "let one learner and the engine share one GPU"
        )
    if config.engine.kind == "local" and sampling:
        yield (
            'placement.engine_gpus is set and engine.kind = "local" samples where the learner is: leave one of them out'
        )
    if config.engine.url and sampling:
        yield "placement.engine_gpus is set and engine.url names a running server: leave one of them out"
    if placement.learner_processes and learning:
        yield (
            "placement.learner_processes is for CPUs, and placement.learner_gpus starts one process for each of its "
            "GPUs: leave one of them out"
        )
    learners = placement.learner_processes or len(learning)
    if learners > 1:
        yield from _several_learners(config, learners)
    if placement.in_process and len(learning) > 1:
        yield (
            f"placement.in_process = true and placement.learner_gpus with {len(learning)} GPUs: several learners "
            "need processes of their own"
        )
    if placement.in_process and len(learning) == 1 and learning != (0,):
        yield (
            f"placement.in_process = true and placement.learner_gpus = {learning[0]}: a learner in the trainer's own "
            f"process takes the first visible GPU: start with CUDA_VISIBLE_DEVICES={learning[0]} instead, or leave "
            "placement.in_process out"
        )
    if train.optimizer == "adafactor" and train.method == "full" and learners > 1:
        yield (
            'train.optimizer = "adafactor" keeps statistics of whole rows, which several learners divide: '
            "take adamw, whose memory is divided too, or sgd"
        )

    if train.offload_while_sampling == "host":
        yield from _nothing_to_move(config, learners)


def _cluster_contradictions(config: RunSettings) -> Iterator[str]:
    """Yield a sentence for each setting of one machine in a run on a cluster, and the other way round."""
    if config.backend != "ray":
        if config.ray.address != "auto" and config.backend == "local":
            yield f"ray.address = {config.ray.address!r} and the backend is {config.backend}: add --backend ray"
        return
    for name in ("learner_gpus", "engine_gpus", "learner_processes", "in_process"):
        if getattr(config.placement, name):
            yield (
                f"placement.{name} is about the processes of one machine, and ray.learners and ray.engines place those "
                "of a cluster: leave it out"
            )
    if config.engine.url:
        yield "engine.url names one server, and each engine of a cluster starts its own: leave it out"
    most = config.ray.most_engines
    if most is not None and most < config.ray.engines:
        yield f"ray.most_engines = {most} is less than ray.engines = {config.ray.engines}, with which a run begins"
    rollouts = config.rollout.groups_per_step * config.rollout.group_size
    if config.ray.learners > rollouts:
        yield f"ray.learners = {config.ray.learners} have nothing to divide: a step has {rollouts} rollouts"


def _nothing_to_move(config: RunSettings, learners: int) -> Iterator[str]:
    whose = 'train.offload_while_sampling = "host"'
    if config.engine.kind == "local":
        yield f'{whose} and engine.kind = "local", which samples the learner\'s own weights: leave one of them out'
    if config.train.max_staleness or config.engine.sharing == "split":
        other = "train.max_staleness" if config.train.max_staleness else 'engine.sharing = "split"'
        yield f"{whose} and {other}, with which the learner works while vLLM samples: leave one of them out"
    if config.train.method == "full" and learners > 1:
        yield f'{whose} and train.method = "full" with several learners, which divide the weights: leave it out'


def _several_learners(config: RunSettings, learners: int) -> Iterator[str]:
    rollouts = config.rollout.groups_per_step * config.rollout.group_size
    if learners > rollouts:
        yield (
            f"{learners} learners have nothing to divide: rollout.groups_per_step x rollout.group_size = {rollouts} "
            "rollouts in a step"
        )
    if config.unsloth.use and config.train.method == "full":
        yield (
            'unsloth.use = true and train.method = "full" with several learners: they shard the model (FSDP2), '
            "which Unsloth cannot do"
        )
    if config.unsloth.fast_inference:
        yield "unsloth.fast_inference is an engine inside one learner, and there are several: leave it out"
