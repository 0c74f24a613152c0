"""How options of `forebay train` are given on its command line (train/options/option_table.h)."""

_ONLY_SET = set(
    "activations_dtype activations_tier grad_dtype io_threads keep number_checkpoints nvme_weights rank_timeout recompute_layers "
    "reduce_bucket speculate_layers tile_elems trace_steps update_threads".split())
_OF_OPTIMIZER = set("decay_all betas eps momentum nesterov".split())
_OF_LOSS_SCALING = set(
    "loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale consecutive_hysteresis".split())


def flag_of(key, value):
    key = str(key)
    name = key.replace("-", "_")
    if name in _ONLY_SET:
        return f"--set={name}={value}"
    if name in _OF_OPTIMIZER:
        return f"--optimizer_args={name}={value}"
    if name in _OF_LOSS_SCALING:
        return f"--loss_scaling_args={name}={value}"
    return f"--{key}={value}"


def flags_of(settings):
    return [flag_of(key, value) for key, value in settings.items()]
