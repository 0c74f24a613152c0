/* The plugin (mpi_plugin.h) for the MPI whose mpicc compiles this file. */
#include "mpi_plugin.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { kDataTag = 1, kNoticeTag = 2 };

static struct {
  MPI_Comm ranks;
  int rank;
  int size;
  int is_ours; /* MPI_Init_thread was called here */
  int num_outgoing;
  int num_requests;
  MPI_Request*
      requests; /* [2 size]: what is sent, then what is received; [size] more for notices */
  int* request_ranks;
  char notice[kForebayMpiNoticeBytes];
  int has_told;
  int has_given_up;
} state;

static const char* ErrorText(int error) {
  static char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (error == MPI_SUCCESS) return NULL;
  if (MPI_Error_string(error, text, &length) != MPI_SUCCESS) return "an error without a text";
  return text;
}

static const char* Name(void) {
  static char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  version[strcspn(version, ",\n")] = 0;
  return version;
}

static const char* Open(int32_t* rank, int32_t* size) {
  int is_initialized = 0;
  int level = MPI_THREAD_SINGLE;
  int error = MPI_Initialized(&is_initialized);
  if (error != MPI_SUCCESS) return ErrorText(error);
  error = is_initialized ? MPI_Query_thread(&level)
                         : MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
  if (error != MPI_SUCCESS) return ErrorText(error);
  state.is_ours = !is_initialized;
  /* Errors of what belongs to no communicator go there. */
  if (state.is_ours) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  /* One thread at a time calls it, but not always the one that initialised it. */
  if (level < MPI_THREAD_SERIALIZED) return "it does not give MPI_THREAD_SERIALIZED";
  error = MPI_Comm_dup(MPI_COMM_WORLD, &state.ranks);
  if (error != MPI_SUCCESS) return ErrorText(error);
  MPI_Comm_set_errhandler(state.ranks, MPI_ERRORS_RETURN);
  MPI_Comm_rank(state.ranks, &state.rank);
  MPI_Comm_size(state.ranks, &state.size);
  state.requests = malloc(3 * (size_t)state.size * sizeof *state.requests);
  state.request_ranks = malloc(2 * (size_t)state.size * sizeof *state.request_ranks);
  if (state.requests == NULL || state.request_ranks == NULL) return "no memory";
  *rank = state.rank;
  *size = state.size;
  return NULL;
}

static const char* GatherHosts(char* hosts) {
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  char own[kForebayMpiHostBytes] = "";
  int length = 0;
  MPI_Get_processor_name(name, &length);
  memcpy(own, name, sizeof own - 1);
  return ErrorText(
      MPI_Allgather(own, sizeof own, MPI_CHAR, hosts, sizeof own, MPI_CHAR, state.ranks));
}

static const char* Start(const struct ForebayMpiItem* outgoing, int32_t num_outgoing,
                         const struct ForebayMpiItem* incoming, int32_t num_incoming) {
  state.num_requests = 0;
  state.num_outgoing = num_outgoing;
  for (int i = 0; i < num_outgoing + num_incoming; ++i) {
    const struct ForebayMpiItem* item =
        i < num_outgoing ? &outgoing[i] : &incoming[i - num_outgoing];
    MPI_Request* request = &state.requests[i];
    const int error = i < num_outgoing ? MPI_Isend(item->bytes, item->size_bytes, MPI_BYTE,
                                                   item->rank, kDataTag, state.ranks, request)
                                       : MPI_Irecv(item->bytes, item->size_bytes, MPI_BYTE,
                                                   item->rank, kDataTag, state.ranks, request);
    if (error != MPI_SUCCESS) return ErrorText(error);
    state.request_ranks[i] = item->rank;
    ++state.num_requests;
  }
  return NULL;
}

static const char* Test(int32_t* num_left, int32_t* rank) {
  *num_left = 0;
  /* From the last, so that the rank which is named is the first of those from which something is
   * awaited, as long as there is one. */
  int is_awaited = 0;
  for (int i = state.num_requests - 1; i >= 0; --i) {
    int is_done = 0;
    const int error = MPI_Test(&state.requests[i], &is_done, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS) {
      *rank = state.request_ranks[i];
      return ErrorText(error);
    }
    if (is_done) continue;
    ++*num_left;
    is_awaited |= i >= state.num_outgoing;
    if (i >= state.num_outgoing || !is_awaited) *rank = state.request_ranks[i];
  }
  return NULL;
}

static const char* GiveUp(int32_t* num_left) {
  *num_left = 0;
  for (int i = state.num_outgoing; i < state.num_requests; ++i) {
    int is_done = 0;
    if (state.requests[i] == MPI_REQUEST_NULL) continue;
    if (!state.has_given_up) MPI_Cancel(&state.requests[i]);
    const int error = MPI_Test(&state.requests[i], &is_done, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS) return ErrorText(error);
    *num_left += !is_done;
  }
  state.has_given_up = 1;
  return NULL;
}

static const char* Hear(int32_t* is_any, char* notice) {
  MPI_Status status;
  int is_there = 0;
  int error = MPI_Iprobe(MPI_ANY_SOURCE, kNoticeTag, state.ranks, &is_there, &status);
  *is_any = is_there;
  if (error != MPI_SUCCESS || !is_there) return ErrorText(error);
  error = MPI_Recv(notice, kForebayMpiNoticeBytes, MPI_BYTE, status.MPI_SOURCE, kNoticeTag,
                   state.ranks, MPI_STATUS_IGNORE);
  return ErrorText(error);
}

static const char* Tell(const char* notice) {
  MPI_Request* requests = state.requests + 2 * state.size;
  memcpy(state.notice, notice, sizeof state.notice);
  for (int r = 0; r < state.size; ++r) {
    requests[r] = MPI_REQUEST_NULL;
    if (r == state.rank) continue;
    const int error = MPI_Isend(state.notice, sizeof state.notice, MPI_BYTE, r, kNoticeTag,
                                state.ranks, &requests[r]);
    if (error != MPI_SUCCESS) return ErrorText(error);
  }
  state.has_told = 1;
  return NULL;
}

static const char* TestTold(int32_t* is_done) {
  *is_done = 1;
  for (int r = 0; state.has_told && r < state.size; ++r) {
    int one_is_done = 0;
    const int error =
        MPI_Test(&state.requests[2 * state.size + r], &one_is_done, MPI_STATUS_IGNORE);
    if (error != MPI_SUCCESS) return ErrorText(error);
    *is_done &= one_is_done;
  }
  return NULL;
}

static void Close(void) {
  MPI_Comm_free(&state.ranks);
  free(state.requests);
  free(state.request_ranks);
  if (state.is_ours) MPI_Finalize();
}

const struct ForebayMpi* forebay_mpi(void) {
  static const struct ForebayMpi functions = {
      kForebayMpiVersion, Name, Open, GatherHosts, Start, Test, GiveUp, Hear, Tell,
      TestTold,           Close};
  return &functions;
}
