"""ZeRO-3's training checkpoints, put into a model's slices by DeepSpeed's own loaders.

No process ever holds the whole model. DeepSpeed loads through a training engine, so one is made for
the loading alone, with an optimizer that has no states; then it is released with its float32 copies
and gradients.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from components.models.zero_folder import is_stage_3, model_states, optimizer_states
from components.models.zero_states import READING_FAILS, numbers_only, read_states, saved_ranks
from components.ranks.place import Place
from pipeline.spec import SpecError, require

KEY = "backend.load_checkpoint"
WAYS = ("consolidated", "engine", "universal")
_CONSOLIDATED = f"set {KEY}=consolidated, which takes any"


class _NoOptimizer(torch.optim.Optimizer):
    """What a training engine must have to load: it updates nothing, and keeps no states."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.0})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Nothing: DeepSpeed takes one step of zero gradients, to let states be made."""


def refuse_way(way: str, settings: Mapping[str, Any]) -> None:
    """Refuse a value of `backend.load_checkpoint`, or one that does not go with `backend.config`.

    Raises:
        SpecError: says which can.
    """
    require(way in WAYS, KEY, f"be one of {', '.join(WAYS)}", way)
    offload = settings["zero_optimization"].get("offload_param") or {}
    rule = "be consolidated with offload_param.device=nvme: DeepSpeed loads into slices in memory"
    require(way == "consolidated" or offload.get("device") != "nvme", KEY, rule, way)


def refuse_tag(way: str, tag: Path | None, path: str, place: Place) -> None:
    """Refuse a checkpoint that `engine` or `universal` cannot load, before anything is loaded.

    Args:
        way: `engine` or `universal`.
        tag: the folder of the tag; None where the model is no checkpoint of ZeRO.
        path: `model.path`.
        place: this rank of those that are to load it.

    Raises:
        SpecError: says which way can, or which file is missing or damaged.
    """
    rule = f"be consolidated for model.path={path}, which is no training checkpoint of ZeRO"
    require(tag is not None, KEY, rule, way)
    assert tag is not None
    rule = f"be consolidated for {tag}, which is not of stage 3: ranks hold no slices of weights"
    require(is_stage_3(tag), KEY, rule, way)
    saved = saved_ranks(tag)
    if way == "engine":
        _refuse_other_ranks(tag, saved, place.world)
        read_states(optimizer_states(tag, place.rank))
        return
    frozen = read_states(model_states(tag, 0)).get("frozen_param_shapes")
    rule = f"be engine or consolidated for {tag}, of which some weights were frozen in training: "
    rule += "DeepSpeed's universal checkpoints leave those out"
    require(not frozen, KEY, rule, way)


def _refuse_other_ranks(tag: Path, saved: int, here: int) -> None:
    if saved != here:
        raise SpecError(
            f"{KEY}=engine needs as many ranks as saved the checkpoint: {saved} saved {tag}, and "
            f"here {'is' if here == 1 else 'are'} {here}. Start {saved}, or set {KEY}=universal or "
            "consolidated, which take any number"
        )


def load_slices(
    model: PreTrainedModel,
    settings: Mapping[str, Any],
    tag: Path,
    place: Place,
    universal: Path | None = None,
) -> None:
    """Load a rank's slice of every weight, in place.

    Args:
        model: cut over the ranks, and not in an engine yet.
        settings: the configuration of its engine.
        tag: the folder of a tag of stage 3.
        place: this rank.
        universal: the universal checkpoint of the tag; None: as many ranks as saved it are here,
            and each reads the files of its own number.

    Raises:
        SpecError: a file is damaged, or has other weights than the model.
    """
    states = read_states(model_states(tag, 0 if universal else place.rank))
    groups = _groups(model, states, tag)
    own = None if universal else _own_slices(tag, place, groups)
    engine = _training_engine(model, settings, groups)
    try:
        engine.optimizer.checkpoint_event_prologue()
        engine.load_module_state_dict(states)  # buffers, and what was frozen
        slices = [own if rank == place.rank else None for rank in range(place.world)]
        folder = str(universal) if universal else None
        with numbers_only(f"a file of {universal or tag}"):
            engine.optimizer.load_state_dict(
                slices, load_optimizer_states=False, checkpoint_folder=folder
            )
    except READING_FAILS as error:
        raise SpecError(f"{tag} does not fit model.path: {error}; {_CONSOLIDATED}") from error
    finally:
        _release(engine, model)


def _groups(
    model: PreTrainedModel, states: Mapping[str, Any], tag: Path
) -> list[dict[str, torch.nn.Parameter]]:
    """The weights of a model in the groups and the order in which slices were saved.

    Raises:
        SpecError: a name or a shape of the checkpoint or of the model has no equal in the other.
    """
    weights = dict(model.named_parameters())
    frozen = states.get("frozen_param_shapes") or {}
    saved = {name: shape for group in states["param_shapes"] for name, shape in group.items()}
    shapes = {name: tuple(shape) for name, shape in {**saved, **frozen}.items()}
    ours = {name: tuple(_whole_shape(weight)) for name, weight in weights.items()}
    strange = sorted(name for name in shapes.keys() | ours if shapes.get(name) != ours.get(name))
    if strange:
        name = strange[0]
        raise SpecError(
            f"{tag} must hold the weights of its config.json, and {len(strange)} differ: {name} is "
            f"{shapes.get(name, 'missing')} there and {ours.get(name, 'missing')} in the model; if "
            f"only names differ, {_CONSOLIDATED}"
        )
    for name in frozen:
        weights[name].requires_grad_(False)
    return [{name: weights[name] for name in group} for group in states["param_shapes"]]


def _whole_shape(weight: Any) -> tuple[int, ...]:
    return tuple(weight.ds_shape)


def _own_slices(
    tag: Path, place: Place, groups: list[dict[str, torch.nn.Parameter]]
) -> Mapping[str, Any]:
    """What this rank saved. DeepSpeed would pass over groups that are too many or too few."""
    file = optimizer_states(tag, place.rank)
    states = read_states(file).get("optimizer_state_dict")
    slices = states.get("fp32_flat_groups") if isinstance(states, dict) else None
    found = [slice.numel() for slice in slices or []]
    expected = [sum(-(-_numel(w) // place.world) for w in group.values()) for group in groups]
    if not isinstance(states, dict) or found != expected:
        raise SpecError(
            f"{file} must hold slices of {expected} numbers, and has {found or 'none'}; "
            f"{_CONSOLIDATED} whose files fit together"
        )
    return states


def _numel(weight: Any) -> int:
    return int(weight.ds_numel)


def _training_engine(
    model: PreTrainedModel,
    settings: Mapping[str, Any],
    groups: list[dict[str, torch.nn.Parameter]],
) -> Any:
    """An engine whose optimizer cuts weights into the groups that were saved."""
    import deepspeed

    zero = {
        **settings["zero_optimization"],
        "sub_group_size": sum(map(_numel, model.parameters())) + 1,  # no group is cut again
        "stage3_param_persistence_threshold": 0,
        "contiguous_gradients": False,  # no buffer for gradients, of which there are none
        "offload_optimizer": {"device": "cpu"},  # float32 copies take no memory of a GPU
    }
    return deepspeed.initialize(
        model=model,
        config={
            **settings,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
        optimizer=_NoOptimizer([{"params": list(group.values())} for group in groups]),
    )[0]


def _release(engine: Any, model: PreTrainedModel) -> None:
    """Let go of an engine, whom the model's hooks and weights would keep in memory."""
    engine.destroy()
    engine.module_forward_pre_hook.remove()
    engine.module_forward_post_hook.remove()
    for weight in model.parameters():
        vars(weight).pop("_z3_optimizer", None)
