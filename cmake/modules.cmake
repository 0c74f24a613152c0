# The folders of our C++ sources, lowest first. Every list of them is this one: what is built, which tests there are,
# headers alone and clang-tidy. check_tree fails if it differs from the table in docs/design/folders.md or from the tree.
set(FOREBAY_MODULES
  base device memory collective aio measure step swap optimizer offload capi replay data model train doctor tools)
# Modules whose tests also run under the sanitizers: all except those in which oneDNN and libgomp, which are not
# instrumented, do the work. A test above them that is worth it says SANITIZED.
set(FOREBAY_CORE_MODULES ${FOREBAY_MODULES})
list(REMOVE_ITEM FOREBAY_CORE_MODULES model train doctor tools)
