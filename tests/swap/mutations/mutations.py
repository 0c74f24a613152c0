"""What is done wrong: name -> (source of swap/, text that is in it once, what stands there instead)."""

COMMIT = "store/tensor_store_commit.cc"
RECORD = "records/commit_record.cc"
CACHE = "session/tile_cache.cc"
REPAIR = "store/tensor_store_repair.cc"
SEALS = "store/tensor_store_seals.cc"
SESSION = "session/tensor_session_writes.cc"
TABLES = "records/tile_seals.cc"

MUTATIONS = {
    # Nothing: the suite must pass however it is linked.
    "none": (COMMIT, "// Whether what the record speaks of can be used.\n", "// Can it be used?\n"),
    # ---- Barriers
    "data_not_flushed": (COMMIT, "if (status.ok()) status = FlushData();", ""),
    "weights_not_flushed": (
        COMMIT,
        "{stripe.weights_file, stripe.state_file, stripe.seals_files[0], stripe.seals_files[1]}",
        "{stripe.state_file, stripe.seals_files[0], stripe.seals_files[1]}",
    ),
    "state_not_flushed": (
        COMMIT,
        "{stripe.weights_file, stripe.state_file, stripe.seals_files[0], stripe.seals_files[1]}",
        "{stripe.weights_file, stripe.seals_files[0], stripe.seals_files[1]}",
    ),
    "tables_not_flushed": (
        COMMIT,
        "{stripe.weights_file, stripe.state_file, stripe.seals_files[0], stripe.seals_files[1]}",
        "{stripe.weights_file, stripe.state_file}",
    ),
    "record_before_data": (
        COMMIT,
        "if (status.ok()) status = FlushData();\n  }\n  if (status.ok() && before_record) status = before_record();\n"
        "  if (status.ok()) status = WriteCopies(block->bytes);",
        "}\n  if (status.ok()) status = WriteCopies(block->bytes);\n  if (status.ok()) status = FlushData();",
    ),
    "skipped_step_in_the_other_slot": (
        COMMIT,
        "next.slot = changes_tiles ? working_slot() : committed_slot();",
        "next.slot = working_slot();",
    ),
    "first_copy_not_flushed": (
        COMMIT,
        "return Flush(commit_files);",
        "return copy == 0 ? absl::OkStatus() : Flush(commit_files);",
    ),
    "second_copy_not_flushed": (
        COMMIT,
        "return Flush(commit_files);",
        "return copy == 1 ? absl::OkStatus() : Flush(commit_files);",
    ),
    "second_copy_written_first": (
        COMMIT,
        "FOREBAY_RETURN_IF_ERROR(WriteCopy(0, record_bytes));\n  return WriteCopy(1, record_bytes);",
        "FOREBAY_RETURN_IF_ERROR(WriteCopy(1, record_bytes));\n  return WriteCopy(0, record_bytes);",
    ),
    "overwriting_not_flushed": (
        COMMIT,
        "return Flush(commit_files);",
        "return bytes[60] == std::byte{1} ? absl::OkStatus() : Flush(commit_files);",
    ),
    "overwriting_not_announced": (
        COMMIT,
        "FOREBAY_RETURN_IF_ERROR(WriteCopies(block->bytes));\n  const std::lock_guard",
        "const std::lock_guard",
    ),
    "copies_not_repaired": (COMMIT, "FOREBAY_RETURN_IF_ERROR(RepairCopies(folders));", ""),
    "repair_tables_not_flushed_in_turn": (
        REPAIR,
        "    FOREBAY_RETURN_IF_ERROR(FlushData());\n  }\n  return absl::OkStatus();",
        "  }\n  return FlushData();",
    ),
    "repair_tables_not_flushed": (REPAIR, "    FOREBAY_RETURN_IF_ERROR(FlushData());\n", ""),
    # ---- Checks
    "overwriting_ignored": (COMMIT, "if (!found.overwriting || access == StoreAccess::kBesideWriter) return", "return"),
    "weights_not_verified": (
        SEALS,
        "return impl_->Verify(tile, 0, 1, weights, impl_->NewestSlot(impl_->weights_progress[tile]));",
        "return tile >= 0 || weights.empty() ? absl::OkStatus() : absl::InternalError(\"\");",
    ),
    "state_not_verified": (
        SEALS,
        "return impl_->Verify(tile, 1, impl_->NumPlanes(tile), state,\n"
        "                       impl_->NewestSlot(impl_->state_progress[tile]));",
        "return tile >= 0 && !state.empty() ? absl::OkStatus() : absl::UnknownError({});",
    ),
    "last_plane_not_verified": (
        SEALS,
        "for (int plane = first_plane; plane < end_plane; ++plane) {\n"
        "    const auto bytes",
        "for (int plane = first_plane; plane < std::min(end_plane, 3); ++plane) {\n"
        "    const auto bytes",
    ),
    "tensors_not_verified": (
        "store/tensor_store_tiles.cc",
        "if (unfilled || seals[slot].Matches(tile, part, plane, bytes)) return absl::OkStatus();",
        "if (slot < 2) return absl::OkStatus();",
    ),
    "root_not_checked": (SEALS, "seals[slot].RootOfTables() != record.seals_root", "record.seals_root.empty()"),
    "tables_of_another_step": (
        SEALS,
        "if (head.ok() && HaveSameTiles(head->record, record)) return absl::OkStatus();",
        "if (head.ok()) return absl::OkStatus();",
    ),
    "second_table_not_read": (SEALS, "if (!second.ok()) return first;", "return first;"),
    "first_table_not_repaired": (SEALS, "return RepairTable(stripe, slot, 0);", "return absl::OkStatus();"),
    "second_table_not_repaired": (SEALS, ": RepairTable(stripe, slot, 1)", ": absl::OkStatus()"),
    "table_hash_not_checked": (TABLES, "if (fault == RecordFault::kDamaged) return bad(\"are damaged\");", ""),
    "torn_tables_taken": (TABLES, "head.record.sequence != trailer.sequence", "head.record.sequence == 0"),
    "record_hash_not_checked": (RECORD, " || fault == RecordFault::kDamaged)", ")"),
    "older_record_chosen": (
        RECORD,
        "first.record.sequence >= second.record.sequence;",
        "first.record.sequence <= second.record.sequence;",
    ),
    "chain_not_checked": (
        RECORD,
        "newer.record.previous_hash != older.hash",
        "newer.record.sequence == older.record.sequence",
    ),
    "rivals_not_checked": (RECORD, "apart == 0 && newer.hash != older.hash", "apart == 0 && newer.hash == 0"),
    "repair_takes_what_is_damaged": (REPAIR, "if (damaged.empty()) {", "if (damaged.size() < 3) {"),
    "repair_takes_any_tables": (
        REPAIR,
        "found->record.seals_root != seals[slot].RootOfTables()",
        "found->record.seals_root.empty()",
    ),
    "repair_keeps_the_sequence": (REPAIR, "again.sequence = newest.record.sequence + 1;", ""),
    "repair_takes_what_was_skipped": (
        REPAIR,
        "if (!known.newest.has_value() || manifest.num_slots == 1) return;",
        "if (!known.newest.has_value() || manifest.num_slots > 0) return;",
    ),
    # ---- Sessions
    "session_keeps_what_was_given_up": (CACHE, "  states_[cell.tile].same_in_both = false;\n", ""),
    "session_keeps_what_was_changed": (
        CACHE,
        "state.same_in_both = has_commit_ && !state.changed;",
        "state.same_in_both = has_commit_;",
    ),
    "session_abort_discards_nothing": (SESSION, "  store->DiscardWrites();\n", ""),
}

# Those that the store does not even do, whatever a test would make of them: a text in its check that ends the program.
ENDED_BY = {
    "overwriting_ignored": "!impl_->record.overwriting",
    "session_keeps_what_was_given_up": "SameChecksums",
    "session_keeps_what_was_changed": "SameChecksums",
}
