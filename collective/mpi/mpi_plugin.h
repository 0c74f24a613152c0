/* What a plugin of forebay's for one MPI gives: a small C interface of our own, since the MPIs'
 * binary interfaces differ. There is one shared library for each MPI that was there when forebay
 * was built; the one that belongs to the mpirun which started the process is opened when it is
 * needed, so that forebay starts where there is no MPI.
 *
 * Calls come from one thread at a time. Texts of errors are the plugin's and valid until the next
 * call. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { kForebayMpiVersion = 2, kForebayMpiHostBytes = 64, kForebayMpiNoticeBytes = 1024 };

struct ForebayMpiItem {
  int32_t rank;
  int32_t size_bytes;
  void* bytes;
};

struct ForebayMpi {
  int32_t version;
  /* "Open MPI v4.1.4": for messages. */
  const char* (*name)(void);
  /* MPI_Init_thread where nobody did it before. NULL, or why not. */
  const char* (*open)(int32_t* rank, int32_t* size);
  /* hosts: [size][kForebayMpiHostBytes], the name of each rank's machine. Every rank calls it. */
  const char* (*gather_hosts)(char* hosts);
  /* Begins to send and receive; at most one item for each rank in each list. Requires: no exchange
   * is under way. */
  const char* (*start)(const struct ForebayMpiItem* outgoing, int32_t num_outgoing,
                       const struct ForebayMpiItem* incoming, int32_t num_incoming);
  /* How many items are not done yet, and the rank of one of them: of one that is awaited, where
   * there is any. */
  const char* (*test)(int32_t* num_left, int32_t* rank);
  /* Cancels what is received, so that its memory is the caller's again as soon as nothing of it is
   * left (*num_left). To be called again until then; nothing may be started any more. */
  const char* (*give_up)(int32_t* num_left);
  /* A notice that some rank has told: *is_any, notice: [kForebayMpiNoticeBytes]. */
  const char* (*hear)(int32_t* is_any, char* notice);
  /* Begins to tell all others, once; *is_done: they have it, or nothing was told. */
  const char* (*tell)(const char* notice);
  const char* (*test_told)(int32_t* is_done);
  /* After everything went well: MPI_Finalize, which waits for all ranks, if `open` did MPI_Init. */
  void (*close)(void);
};

/* The one symbol that a plugin exports. */
const struct ForebayMpi* forebay_mpi(void);

#ifdef __cplusplus
}
#endif
