/* forebay from C: training state on NVMe, in RAM or both, behind layers that are announced, leased,
   given gradients and updated; and the update kernels alone. Installed as <forebay/c.h>; the
   library is libforebay.so.

   Rules:
   - Objects are opaque. A `_create` gives one, the `_destroy` of its type ends it, or NULL.
   - A call that can fail returns a code (FOREBAY_OK is 0; the others are the exit codes of the
     program `forebay`) and takes `char** message` last, which may be NULL. Where a call fails,
     *message is a text that says what failed, why and what to do about it: free it with
     forebay_free. Where it succeeds, *message stays as it was.
   - A caller's mistake is FOREBAY_USAGE, and changes nothing. No call ends the process.
   - Text and data are pointer and length; texts that are returned also end with a zero byte. JSON
     is UTF-8. Folders may be relative to the current folder at the time of the call.
   - Options are structs whose first member is their size: set it to sizeof of the struct, and the
     rest to zeros, which always means the default. A program compiled with an older header works
     with a newer library.
   - Any thread may call, and several at a time on one object. Calls on tensors and on a disk engine
     run side by side, and so do those that ask what a lease holds; on every other object they wait
     for each other, except forebay_layers_stop. Only the last call on an object may end it. A fork
     of the process that made an object cannot use it (USAGE), and a `_destroy` there does nothing.
   - Nothing calls back, there is no global state; locale, signals and environment are left alone.
   - No descriptor that is opened is 0, 1 or 2, also where the program has closed these. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FOREBAY_ABI_VERSION 1
/* FOREBAY_ABI_VERSION of the library. It grows if something that was there changes. */
int32_t forebay_abi_version(void);
const char* forebay_version(void); /* "0.1.0"; not to be freed */
void forebay_free(void* text);
enum {
  FOREBAY_OK = 0,
  FOREBAY_INTERNAL = 1,      /* a bug in forebay */
  FOREBAY_USAGE = 2,         /* a mistake of the caller's */
  FOREBAY_BAD_INPUT = 3,     /* a model or data that is not valid */
  FOREBAY_DOES_NOT_FIT = 4,  /* found before starting: too little memory or disk */
  FOREBAY_STORAGE = 5,       /* an I/O operation failed */
  FOREBAY_OUT_OF_MEMORY = 6, /* memory ran out while running */
  FOREBAY_NUMERICAL = 7,     /* values that are not finite */
  FOREBAY_CORRUPT = 8,       /* a store that is damaged, or another one than expected */
  FOREBAY_ENVIRONMENT = 9, /* the machine: a lock, a kernel feature, a thread that cannot be had */
  FOREBAY_INTERRUPTED = 75 /* stopped by forebay_layers_stop */
};

/* Types of elements. */
enum { FOREBAY_F32 = 0, FOREBAY_BF16 = 1, FOREBAY_F16 = 2 };

/* ---- The optimizers ---------------------------------------------------------------------------

   The formulas are those of torch.optim with fp32 arithmetic. Weight decay is decoupled in AdamW
   and Lion; the others add it to the gradient. */
enum {
  FOREBAY_ADAMW = 0,
  FOREBAY_ADAM = 1,
  FOREBAY_ADAGRAD = 2,
  FOREBAY_LION = 3,
  FOREBAY_SGD = 4
};

/* The settings of a group of tensors in one step. What the optimizer does not have is not read. */
typedef struct {
  double lr;
  double weight_decay;
  double beta1;   /* AdamW, Adam, Lion; SGD: the momentum */
  double beta2;   /* AdamW, Adam, Lion */
  double eps;     /* AdamW, Adam, Adagrad; > 0 */
  int32_t frozen; /* not 0: weights and moments stay what they are */
  int32_t reserved;
} forebay_group;

/* ---- An inventory: layers and their tensors ---------------------------------------------------

   A layer is read, lent and updated as a whole. Names are unique. Raw layers come last. */
typedef struct forebay_inventory forebay_inventory;
forebay_inventory* forebay_inventory_create(void);
void forebay_inventory_destroy(forebay_inventory* inventory);
/* Starts a layer; the tensors added next are its own. */
int32_t forebay_inventory_begin_layer(forebay_inventory* inventory, const char* name,
                                      size_t name_length, char** message);
/* Adds a tensor of `rank` dimensions, of group `group` (an index into the groups of a step). *index
   (may be NULL): its number, by which other calls name it. */
int32_t forebay_inventory_add(forebay_inventory* inventory, const char* name, size_t name_length,
                              const int64_t* shape, int32_t rank, int32_t group, int32_t* index,
                              char** message);
/* Starts a layer of raw tensors: bytes that are stored and committed with others, and no more. */
int32_t forebay_inventory_begin_raw_layer(forebay_inventory* inventory, const char* name,
                                          size_t name_length, char** message);
int32_t forebay_inventory_add_raw(forebay_inventory* inventory, const char* name,
                                  size_t name_length, int64_t num_bytes, int32_t* index,
                                  char** message);

/* ---- Ranks ------------------------------------------------------------------------------------

   Processes that train together. All make the same calls in the same order: of these functions, and
   on layers that were made with them. A rank that dies, hangs or does something else ends the calls
   of the others with ENVIRONMENT, which has its number, its host and its reason. */
typedef struct forebay_ranks forebay_ranks;
typedef struct {
  size_t struct_size;
  double timeout_s; /* that another rank may be silent; 0: 600 */
  /* 0, as all that follows: torchrun, deepspeed, mpirun or srun says it; else there is one rank. */
  int32_t size;
  int32_t rank;
  const char* master_address; /* of the machine of rank 0; ends with a zero byte */
  int32_t master_port;        /* the first of 16, at one of which rank 0 listens */
  int32_t reserved;
} forebay_ranks_options;
/* Waits for the other ranks. ENVIRONMENT: one did not come, and which. */
int32_t forebay_ranks_connect(const forebay_ranks_options* options, forebay_ranks** ranks,
                              char** message);
/* Layers that were made with it keep what they need. */
void forebay_ranks_destroy(forebay_ranks* ranks);
int32_t forebay_ranks_rank(const forebay_ranks* ranks);
int32_t forebay_ranks_size(const forebay_ranks* ranks);
int32_t forebay_ranks_local_rank(const forebay_ranks* ranks); /* which GPU is its own */
/* *text: a warning, or "", to be freed: ranks on several machines share no FOREBAY_JOB_SECRET. */
int32_t forebay_ranks_warning(forebay_ranks* ranks, char** text, char** message);
/* Returns when every rank has called it. */
int32_t forebay_ranks_barrier(forebay_ranks* ranks, char** message);
/* Has the calls of all ranks fail, those under way too, with INTERRUPTED. From any thread. */
void forebay_ranks_abort(forebay_ranks* ranks);
/* The values of each rank become their sum, taken in the order of the ranks. */
int32_t forebay_ranks_sum(forebay_ranks* ranks, float* values, size_t num_values, char** message);
/* The same of part r alone on rank r: [offsets[r], offsets[r + 1]) of them. The others are left as
   they were. offsets: [size + 1], from 0 to the number of all, ascending, on all ranks the same. */
int32_t forebay_ranks_sum_parts(forebay_ranks* ranks, float* values, const int64_t* offsets,
                                char** message);
/* Bytes: part r of each rank becomes that of rank r. */
int32_t forebay_ranks_gather_parts(forebay_ranks* ranks, void* data, const int64_t* offsets,
                                   char** message);
/* The bytes of each rank become those of rank `root`. */
int32_t forebay_ranks_broadcast(forebay_ranks* ranks, void* data, size_t num_bytes, int32_t root,
                                char** message);

/* ---- Layers -----------------------------------------------------------------------------------

   Weights, fp32 masters and moments of an inventory, in a store on disk, in RAM or both, inside a
   memory budget.

     new, then create, fill, start    a new store, filled tensor by tensor
     new, then open                   the newest committed step of one that is there
     begin_step                       then, in any order that the model has:
       expect, acquire, release         weights; a due update is applied to a layer on its way in
       add_gradient, close_layer        gradients, additive, tensor by tensor
     finish_backward                  the norm
     update                           the step is real
     skip                             or it counts, and changes no weights
     abandon                          or it never was
     commit                           durable

   After an error of a read or a write, abandon the step: the committed one stands. */
typedef struct forebay_layers forebay_layers;

/* Where state may lie. */
enum { FOREBAY_TIER_AUTO = 0, FOREBAY_TIER_RAM = 1, FOREBAY_TIER_NVME = 2 };
/* A crash leaves one of these. AUTO takes STEP where the disks have room for two copies, or NONE */
enum {
  FOREBAY_DURABILITY_AUTO = 0,
  FOREBAY_DURABILITY_NONE = 1, /* nothing, if a step was being written: there is one copy */
  FOREBAY_DURABILITY_STEP = 2  /* the last committed step */
};
enum {
  FOREBAY_ENGINE_AUTO = 0,
  FOREBAY_ENGINE_URING = 1,
  FOREBAY_ENGINE_LIBAIO = 2,
  FOREBAY_ENGINE_THREADS = 3
};
enum { FOREBAY_HOST = 0, FOREBAY_CUDA = 1 };
/* How a step goes through the layers: forward and backward (the weights are lent), or only the
   update at its end (the weights are computed with elsewhere, and read once after each update). */
enum { FOREBAY_PASS_FORWARD_BACKWARD = 0, FOREBAY_PASS_UPDATE_ONLY = 1 };

typedef struct {
  size_t struct_size;
  /* The store's own folders, one for each disk; made where they are not there. At least one. */
  const char* const* folders;
  size_t num_folders;
  const double* folder_weights; /* their shares, in proportion; NULL: all the same */
  int64_t ram_bytes;            /* all that this object may take; 0: 80 % of what is available */
  int32_t weight_dtype;         /* that weights are lent in; masters are fp32 whatever it is */
  int32_t gradient_dtype;       /* that complete gradients wait in for the update */
  int32_t optimizer;
  int32_t nesterov; /* SGD with momentum */
  double momentum;  /* SGD: not 0 where any group has one */
  int32_t weights_tier;
  int32_t state_tier;
  int32_t gradients_tier;
  int32_t durability;
  int64_t commit_every; /* steps; 0: as often as it costs little; -1: when it is asked for, alone */
  int32_t engine;
  int32_t num_threads; /* of the update; 0: one per core that it may use */
  int32_t pass;
  int32_t num_open_layers;   /* that add_gradient may be summing at one time; 0: 2 */
  int32_t num_window_layers; /* that the window holds at one time; 0: as there is memory for */
  /* Not 0: gradients are applied as layers close, which they do from the last to the first, and
     every step is committed. Of several layers that of the first, which comes last, is applied when
     the layer is read next, and the commit of update() is made with that: committed_step is one
     behind until then. For steps that are not clipped. USAGE with durability NONE, and
     with commit_every above 1. */
  int32_t update_in_backward;
  int64_t tile_elems; /* elements that are read and written at once; 0: the default */
  /* FOREBAY_HOST or FOREBAY_CUDA: where leases lie. On a GPU there is a window of num_window_layers
     places (0: 4; 3 at least), each as large as the largest layer: plan_json's device_bytes.
     ENVIRONMENT: this library has no CUDA, or there is no such device. DOES_NOT_FIT: its memory. */
  int32_t device;
  int32_t device_index; /* of FOREBAY_CUDA: 0 is the first GPU that the process sees */
  /* NULL: this process alone. With ranks a step has the mean of their gradients. All make the same
     calls, but for add_gradient and those that only ask (plan, step, committed_step, stats, user,
     raw, updates_of). Layers close from the last to the first. fill takes what rank 0 gives; raw
     tensors are each rank's own. Each has folders of its own in `folders` ("rank-0-of-2"). A commit
     is made by all or by none. */
  forebay_ranks* ranks;
  /* As ZeRO has it: 0: each rank has the whole state. 1 to 3: its part of every layer, and weights
     are gathered once in a step (1 and 2: memory for all layers) or as they are acquired (3). */
  int32_t zero_stage;
  int32_t reduce_dtype; /* of gradients on their way between ranks, where they are added in fp32 */
  int64_t reduce_bucket_bytes; /* of the gradients being summed over ranks; 0: at most 1 GiB */
} forebay_layers_options;
/* Plans what will lie where. Touches no disk. DOES_NOT_FIT, with the least ram_bytes that works. */
int32_t forebay_layers_new(const forebay_layers_options* options,
                           const forebay_inventory* inventory, forebay_layers** layers,
                           char** message);
/* Steps that are not committed are lost. Leases that are out stay readable, and end later. */
void forebay_layers_destroy(forebay_layers* layers);
/* The plan as JSON: memory and disk of each part, bytes moved by a step. Free it. */
int32_t forebay_layers_plan_json(forebay_layers* layers, char** json, char** message);

/* Whether a store is in the folders, even a damaged one: 1 or 0 (also of a creation that was
   killed). -1: unknown; the next open says why, create refuses. All ranks call. A store that must
   be there is opened unasked, as its disk may not be mounted: BAD_INPUT if there is none. */
int32_t forebay_layers_exists(forebay_layers* layers);
/* Removes a store that has made no step. USAGE: it made some, or is open. All ranks call. */
int32_t forebay_layers_remove(forebay_layers* layers, char** message);
/* Makes the store. USAGE where one is there; DOES_NOT_FIT, STORAGE; ENVIRONMENT where another
   process uses the folders. */
int32_t forebay_layers_create(forebay_layers* layers, char** message);
/* The first value of a tensor: all its elements, row-major. Those of a raw tensor: its bytes
   (`dtype` is not looked at). Layers are filled in their order, the tensors of one in any; those
   that are not filled are zeros. */
int32_t forebay_layers_fill(forebay_layers* layers, int32_t tensor, int32_t dtype, const void* data,
                            size_t num_bytes, char** message);
/* Ends the filling, and commits step 0 with `user`, a JSON object of the caller's (see commit). */
int32_t forebay_layers_start(forebay_layers* layers, const char* user, size_t user_length,
                             char** message);
/* In place of create, fill and start: makes a store with the state in `folders`, at its step, which
   any number of ranks may have made, with any zero_stage. That stays as it is. */
int32_t forebay_layers_create_from(forebay_layers* layers, const char* const* folders,
                                   size_t num_folders, char** message);
/* Opens the newest committed step, and applies gradients that a crash has left (REPLAY). BAD_INPUT:
   no store is there. USAGE: it has other tensors than the inventory. CORRUPT: it is damaged. */
int32_t forebay_layers_open(forebay_layers* layers, char** message);

/* Announces the layers that will be acquired next, in order, behind those already announced. */
int32_t forebay_layers_expect(forebay_layers* layers, const int32_t* order, size_t num_layers,
                              char** message);
/* Forgets what was announced and not acquired. */
void forebay_layers_cancel_expected(forebay_layers* layers);

typedef struct forebay_lease forebay_lease;
/* Waits for the weights of the layer that was announced next. On a device it waits until they are
   in RAM and their copy has begun, which forebay_lease_ready orders the caller's work behind; the
   end of a lease begins the copy of the next layer that was announced. USAGE there also while
   another lease of the layer is out. */
int32_t forebay_layers_acquire(forebay_layers* layers, int32_t layer, forebay_lease** lease,
                               char** message);
/* Where a tensor of the layer lies: all its elements in weight_dtype, row-major, 64-byte aligned.
   NULL: it is not of this layer. To be read until the lease is released. An address of the device
   where the lease lies on one. */
const void* forebay_lease_data(const forebay_lease* lease, int32_t tensor);
/* The same of the whole layer, and its size. */
const void* forebay_lease_bytes(const forebay_lease* lease, size_t* num_bytes);
/* For leases on a device, before work is enqueued that reads them. `stream`, a cudaStream_t of that
   device (NULL: the default stream), waits for the weights; and nothing comes into their place
   until all is done that `stream` was given before the lease ended. So for each stream that reads
   them. Nothing here makes the caller wait. `stream` outlives the lease and its DLManagedTensors.
   Leases in RAM are ready. */
int32_t forebay_lease_ready(forebay_lease* lease, void* stream, char** message);
/* Ends the lease. From any thread, without waiting for calls under way. */
void forebay_lease_release(forebay_lease* lease);
/* A DLManagedTensor (DLPack 0.8) over a tensor of the lease, which lives as long as the last of its
   DLManagedTensors, and until it is released. NULL: the tensor is not of this layer. */
void* forebay_lease_dlpack(forebay_lease* lease, int32_t tensor);

/* The scalars of a step. Gradients are multiplied by 1 / loss_scale, and by clip / norm where their
   norm (unscaled) is above clip, as torch.nn.utils.clip_grad_norm_ does it. */
typedef struct {
  size_t struct_size;
  const forebay_group* groups; /* of every group that the inventory names */
  size_t num_groups;
  double clip;       /* 0: none */
  double loss_scale; /* 0: 1 */
} forebay_step_options;
int32_t forebay_layers_begin_step(forebay_layers* layers, const forebay_step_options* options,
                                  char** message);
/* Replaces clip and loss_scale of the step in progress, and the groups where num_groups is not 0.
   Before update, so that they may depend on the norm; where updates are applied in backward, before
   finish_backward, and without groups. */
int32_t forebay_layers_set_step(forebay_layers* layers, const forebay_step_options* options,
                                char** message);
/* Applies what is left of the update of the step before (layers that were not read since), and
   makes the commit that commit_once_applied has asked for. A step's first gradient does so too, and
   needs that nothing is left, or no lease is out: so call it between forward and backward. */
int32_t forebay_layers_settle(forebay_layers* layers, char** message);
/* Adds to the gradient of a tensor, row-major; sums are fp32. One that gets none is left alone. */
int32_t forebay_layers_add_gradient(forebay_layers* layers, int32_t tensor, int32_t dtype,
                                    const void* data, size_t num_bytes, char** message);
/* The same of memory on the device of the layers, which work of `stream` has written (a
   cudaStream_t of that device; NULL: the default stream). The gradient is copied to RAM behind the
   call, and added by the next call of this step: work that `stream` is given later waits for the
   copy, so the memory is that work's to use, or that of a call which waits for it. USAGE also where
   layers are lent in RAM. ENVIRONMENT: the device failed; also of the next call. */
int32_t forebay_layers_add_device_gradient(forebay_layers* layers, int32_t tensor, int32_t dtype,
                                           const void* data, size_t num_bytes, void* stream,
                                           char** message);
/* No more gradients of this layer come in this step. */
int32_t forebay_layers_close_layer(forebay_layers* layers, int32_t layer, char** message);

typedef struct {
  size_t struct_size;
  double norm;             /* of all gradients, divided by loss_scale, before clipping */
  int32_t nonfinite_layer; /* the first with a gradient that is not finite: skip or abandon the
                              step; -1: none */
  int32_t reserved;
} forebay_step_gradients;
/* Closes the layers that are open. */
int32_t forebay_layers_finish_backward(forebay_layers* layers, forebay_step_gradients* gradients,
                                       char** message);
/* Makes the step real. `user`: a JSON object of at most 3 KiB that its commit carries.
   `commit_now`: not 0: returns when it is durable; else commits come by commit_every. USAGE, and
   nothing changed, where a gradient is not finite. */
int32_t forebay_layers_update(forebay_layers* layers, const char* user, size_t user_length,
                              int32_t commit_now, char** message);
/* The step counts, and changes no weights. */
int32_t forebay_layers_skip(forebay_layers* layers, const char* user, size_t user_length,
                            int32_t commit_now, char** message);
/* The step never was. Also after an error, and for a step that has not begun. */
void forebay_layers_abandon(forebay_layers* layers);
/* Makes the last step durable, if it is not. `user` takes the place of what the step was given;
   NULL: that. USAGE where the step is committed already and `user` is another, while a step is in
   progress, or a lease is out. */
int32_t forebay_layers_commit(forebay_layers* layers, const char* user, size_t user_length,
                              char** message);
/* The same, made once the step's update is applied: at once where it is, else in the next step,
   between forward and backward (see settle). It carries `user` (NULL: that of the step) and the raw
   tensors as they are now, which change within steps alone from here on. A crash until then leaves
   the step before. USAGE as of commit; where it is not made at once, leases may be out. */
int32_t forebay_layers_commit_once_applied(forebay_layers* layers, const char* user,
                                           size_t user_length, char** message);
int64_t forebay_layers_committed_step(forebay_layers* layers);
int64_t forebay_layers_step(forebay_layers* layers); /* the last one that is real */
/* `user` of the committed step. Free it. */
int32_t forebay_layers_user_json(forebay_layers* layers, char** json, char** message);
/* Planes of a tensor. */
enum {
  FOREBAY_MASTER = 0, /* fp32 */
  FOREBAY_M = 1,      /* fp32 */
  FOREBAY_V = 2,      /* fp32 */
  FOREBAY_WEIGHT = 3, /* bf16: the master rounded, where weights are bf16; to be read */
  FOREBAY_RAW = 4     /* the bytes of a raw tensor, which has no other */
};
/* Copies elements [first, first + num_elems) of an fp32 plane. USAGE where the last step is not
   committed, or the optimizer has no such plane. */
int32_t forebay_layers_read(forebay_layers* layers, int32_t tensor, int32_t plane, int64_t first,
                            int64_t num_elems, float* values, char** message);
/* The updates that a tensor got: committed steps, less those in which it had no gradient. */
int32_t forebay_layers_updates_of(forebay_layers* layers, int32_t tensor, int64_t* num_updates,
                                  char** message);
/* The bytes of a raw tensor, in RAM until the object is destroyed: to be read at any time, and
   changed in a step, or behind it until forebay_layers_commit. */
int32_t forebay_layers_raw(forebay_layers* layers, int32_t tensor, void** data, size_t* num_bytes,
                           char** message);
/* Bytes moved, time waited, memory taken, the engine: JSON. Free it. */
int32_t forebay_layers_stats_json(forebay_layers* layers, char** json, char** message);
/* Has the call of create, fill, start or open that is under way, or else the next, end soon with
   INTERRUPTED. The only call that does not wait for others. */
void forebay_layers_stop(forebay_layers* layers);

/* A committed step, which is read while the next one is computed, written and committed: on a
   thread of its own, for an export. The step behind that one would be written over it: until the
   snapshot is destroyed, its first write is USAGE (abandon that step, and begin it again). USAGE
   where the store has one copy. A snapshot may outlive its layers, whose store stays open as long.
 */
typedef struct forebay_snapshot forebay_snapshot;
int32_t forebay_snapshot_create(forebay_layers* layers, forebay_snapshot** snapshot,
                                char** message);
void forebay_snapshot_destroy(forebay_snapshot* snapshot);
int64_t forebay_snapshot_step(const forebay_snapshot* snapshot);
/* Copies elements [first, first + num_elems) of a plane: of RAW bytes. */
int32_t forebay_snapshot_read(forebay_snapshot* snapshot, int32_t tensor, int32_t plane,
                              int64_t first, int64_t num_elems, void* values, char** message);

/* ---- Tensors ----------------------------------------------------------------------------------

   The same store for trainers that go through their tensors in an order of their own and update
   them themselves: planes are leased, changed and given back, in RAM inside a budget. A commit
   makes what was given back since the last one a step; a crash leaves the step before or the new
   one.

     create or open
     acquire, change, release     any plane of any tensor; written back beside the caller's work
     commit, or abort             a step
     read                         what is committed, while the next step is written

   Calls of several threads run side by side. An acquire waits for room, which comes from leases
   that end: acquire what belongs together in one call. */
typedef struct forebay_tensors forebay_tensors;
typedef struct {
  size_t struct_size;
  const char* const* folders; /* as of forebay_layers_options; each takes the same share */
  size_t num_folders;
  int64_t ram_bytes;    /* of leases and of what is on its way; 0: 256 MiB */
  int64_t lease_bytes;  /* of it, for leases; 0: half, or what the largest tensor needs */
  double wait_limit_s;  /* how long acquire waits for room; 0: 300 */
  int32_t weight_dtype; /* as which weights are stored; of create, as all that follows */
  int32_t without_m;    /* not 0: there are no first moments */
  int32_t without_v;
  int32_t durability; /* STEP, which AUTO means, or NONE */
  int32_t engine;     /* of open too */
  int32_t reserved;
  int64_t tile_elems; /* elements that are read and written at once; 0: the default */
} forebay_tensors_options;
/* Makes a store whose values are zeros until they are written. USAGE where one is there. */
int32_t forebay_tensors_create(const forebay_tensors_options* options,
                               const forebay_inventory* inventory, forebay_tensors** tensors,
                               char** message);
/* Opens the newest committed step, with the tensors that the store was made with. */
int32_t forebay_tensors_open(const forebay_tensors_options* options, forebay_tensors** tensors,
                             char** message);
/* Changes that are not committed are lost. Leases that are out stay readable, and nothing of those
   for writing is written. */
void forebay_tensors_destroy(forebay_tensors* tensors);
/* The tensors by number: an array of {"name", "layer", "raw", "shape"}. Free it. */
int32_t forebay_tensors_inventory_json(forebay_tensors* tensors, char** json, char** message);

enum {
  FOREBAY_READ = 0,
  FOREBAY_WRITE = 1,    /* to be changed */
  FOREBAY_OVERWRITE = 2 /* all of it will be set: nothing is read, and it begins as anything */
};
typedef struct {
  int32_t tensor;
  int32_t plane;
  int32_t access;
  int32_t reserved;
} forebay_lease_request;
typedef struct forebay_tensor_lease forebay_tensor_lease;

/* Gives all that is requested, or nothing: leases[i] is that of requests[i]. Waits, reads and
   verifies. USAGE: a plane is leased for writing already, or cannot be. DOES_NOT_FIT: it is more
   than lease_bytes. OUT_OF_MEMORY: no room came in wait_limit_s. */
int32_t forebay_tensors_acquire(forebay_tensors* tensors, const forebay_lease_request* requests,
                                size_t num_requests, forebay_tensor_lease** leases, char** message);
/* Starts to read what will be acquired, as far as there is room. */
int32_t forebay_tensors_expect(forebay_tensors* tensors, int32_t tensor, int32_t plane,
                               char** message);
/* The values: row-major, 64-byte aligned; to be changed only where they were leased for that. */
void* forebay_tensor_lease_data(const forebay_tensor_lease* lease, size_t* num_bytes);
/* A DLManagedTensor over them; of RAW one of uint8. That of a lease to read outlives it. */
void* forebay_tensor_lease_dlpack(forebay_tensor_lease* lease);
/* Ends the lease, and has what was leased for writing written. The lease has ended also where the
   error of an earlier write is returned, for which there is no commit. USAGE, and it has not ended,
   where a DLManagedTensor of a lease for writing is left, or the tensors of one were destroyed:
   discard it. NULL is released for free. */
int32_t forebay_tensor_lease_release(forebay_tensor_lease* lease, char** message);
/* Ends the lease, and forgets what was changed. */
void forebay_tensor_lease_discard(forebay_tensor_lease* lease);
/* Makes all that was released one step, durable, with `user`, a JSON object of at most 3 KiB. USAGE
   where a lease for writing is out. */
int32_t forebay_tensors_commit(forebay_tensors* tensors, int64_t step, const char* user,
                               size_t user_length, char** message);
/* Goes back to the committed step. USAGE where a lease for writing is out, or the store has one
   copy, which was written over. */
int32_t forebay_tensors_abort(forebay_tensors* tensors, char** message);
int64_t forebay_tensors_committed_step(forebay_tensors* tensors); /* -1: none yet */
/* `user` of the committed step. Free it. */
int32_t forebay_tensors_user_json(forebay_tensors* tensors, char** json, char** message);
/* Copies elements [first, first + num_elems) of a plane as they were committed. */
int32_t forebay_tensors_read(forebay_tensors* tensors, int32_t tensor, int32_t plane, int64_t first,
                             int64_t num_elems, void* values, char** message);
/* Bytes moved, time waited, memory taken, the engine: JSON. Free it. */
int32_t forebay_tensors_stats_json(forebay_tensors* tensors, char** json, char** message);

/* ---- The update kernels -----------------------------------------------------------------------

   One step over arrays of the caller's. The weights of bf16 are the upper halves of fp32 masters,
   whose lower halves (`remainder`) are kept beside them; those of fp16 have a master beside them;
   those of fp32 are their own. Same bits as the update of layers, whatever the number of threads.
   Moments that the optimizer has not are NULL. */
typedef struct {
  size_t struct_size;
  int32_t optimizer;
  int32_t nesterov;
  int32_t weight_dtype;
  int32_t gradient_dtype;
  int64_t num_elems;
  void* weights;        /* [num_elems] of weight_dtype */
  void* remainder;      /* [num_elems] int16, of bf16; NULL of others */
  float* master;        /* [num_elems], of fp16; NULL of others */
  void* m;              /* [num_elems] of moment_dtype */
  void* v;              /* [num_elems] of moment_dtype */
  const void* gradient; /* [num_elems] of gradient_dtype */
  forebay_group group;
  int64_t step;          /* from 1 */
  double gradient_scale; /* multiplies every gradient; 0: 1 */
  /* Not 0: 16-bit weights have neither remainder nor master. Their update is computed in fp32, and
     rounded to the nearest, ties to even. */
  int32_t round_weights;
  int32_t moment_dtype; /* of m and v; those of 16 bits are rounded likewise */
} forebay_kernel_run;
typedef struct forebay_kernels forebay_kernels; /* a pool of threads */
/* 0 threads: one per core that the process may use. */
int32_t forebay_kernels_create(int32_t num_threads, forebay_kernels** kernels, char** message);
void forebay_kernels_destroy(forebay_kernels* kernels);
/* Updates all `runs`. */
int32_t forebay_kernels_update(forebay_kernels* kernels, const forebay_kernel_run* runs,
                               size_t num_runs, char** message);
/* Splits fp32 masters into bf16 weights and remainders, [num_elems] each; joins them: exact. */
int32_t forebay_kernels_split(forebay_kernels* kernels, const float* master, int64_t num_elems,
                              void* weights, void* remainder, char** message);
int32_t forebay_kernels_join(forebay_kernels* kernels, const void* weights, const void* remainder,
                             int64_t num_elems, float* master, char** message);
/* The sum of squares of [num_elems] gradients in fp64, the same bits whatever the number of
   threads; NaN or infinite where one of them is. */
int32_t forebay_kernels_sum_of_squares(forebay_kernels* kernels, int32_t dtype,
                                       const void* gradient, int64_t num_elems, double* sum,
                                       char** message);

/* ---- The disk engine --------------------------------------------------------------------------

   Reads and writes ranges of files from and to memory of the caller's, beside what it computes.
   Addresses, offsets and lengths may be any: what the file system can transfer directly (O_DIRECT)
   is, and the rest goes through the page cache. Every completion is checked: a short transfer goes
   on until all is moved, and what cannot be moved is the error of the wait.

   Requests are started in any order; those whose ranges of a file overlap are the caller's to keep
   apart. Calls of several threads do not wait for one another. Nothing is flushed: call fsync where
   a file has to outlive a power cut. */
typedef struct {
  size_t struct_size;
  int32_t engine;      /* FOREBAY_ENGINE_...; AUTO: the first that the kernel gives */
  int32_t num_threads; /* of THREADS; 0: 2 */
  int64_t block_bytes; /* that the kernel is asked for in one call; 0: what suits the engine */
  int64_t max_in_flight_bytes; /* started and not complete, of each device; 0: 32 MiB */
} forebay_io_options;
typedef struct forebay_io forebay_io;
/* ENVIRONMENT: the kernel does not give the engine that is asked for. */
int32_t forebay_io_create(const forebay_io_options* options, forebay_io** io, char** message);
/* Waits for all requests, whose errors are lost with it. */
void forebay_io_destroy(forebay_io* io);
typedef struct {
  size_t struct_size;
  int32_t is_write; /* 0: a read */
  int32_t fd;       /* of an open file, where path is NULL: looked at in the call, and not closed */
  const char* path; /* a write makes a file that is not there (mode 0600), and cuts none */
  size_t path_length;
  int64_t offset_bytes; /* in the file */
  void* data;           /* [num_bytes], the request's until its wait has returned */
  size_t num_bytes;
} forebay_io_request;
/* Starts a request. *ticket: what it is waited for with. BAD_INPUT: there is no file to read, or it
   ends before the range; STORAGE: it cannot be opened. */
int32_t forebay_io_submit(forebay_io* io, const forebay_io_request* request, uint64_t* ticket,
                          char** message);
/* Waits for a request, once. STORAGE, CORRUPT: it failed, and what of it was moved is not known.
   USAGE: there is no such request, or it was waited for. */
int32_t forebay_io_wait(forebay_io* io, uint64_t ticket, char** message);
/* Waits for all requests that were submitted before. *num_ended (may be NULL): their number, also
   where some failed; the code and message are of the first that did. */
int32_t forebay_io_wait_all(forebay_io* io, int64_t* num_ended, char** message);
/* The engine, and the bytes moved: JSON. Free it. */
int32_t forebay_io_stats_json(forebay_io* io, char** json, char** message);

/* ---- Memory for it ----------------------------------------------------------------------------

   Blocks that begin on a page and are locked in RAM as far as the system allows: what transfers go
   to and come from without a copy. */
typedef struct forebay_memory forebay_memory;
forebay_memory* forebay_memory_create(void);
/* Frees its blocks. */
void forebay_memory_destroy(forebay_memory* memory);
/* A block of zeros, of whole pages, that a forked child does not have. OUT_OF_MEMORY. */
int32_t forebay_memory_allocate(forebay_memory* memory, size_t num_bytes, void** data,
                                char** message);
/* 1: freed; 0: no block begins there. */
int32_t forebay_memory_free(forebay_memory* memory, void* data);
/* 1: all of the range lies in one block; 0: it does not. */
int32_t forebay_memory_contains(forebay_memory* memory, const void* data, size_t num_bytes);
/* Why a block is not locked, and what to do; "" where all are. Free it. */
int32_t forebay_memory_note(forebay_memory* memory, char** text, char** message);

#ifdef __cplusplus
}
#endif
