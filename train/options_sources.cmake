# Options, plan, evaluation and initialisation; the other sources of train/ are in CMakeLists.txt.
set(FOREBAY_TRAIN_OPTIONS_SOURCES
    commit_policy.cc disk_profile.cc evaluate.cc evaluate_model.cc generate_text.cc init_model.cc inspect.cc lr_schedule.cc
    lr_schedule_table.cc machine_limits.cc model_session.cc option_kinds.cc option_table.cc pack_cache.cc parameter_groups_of.cc plan.cc plan_text.cc resolve_options.cc stripe_weights.cc)
