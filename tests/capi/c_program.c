/* A whole trainer in C11: c_program FOLDER makes or opens a store, trains three steps more and
 * prints what it has. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <forebay/c.h>

static int failed(int32_t code, char* message, const char* what) {
  if (code == FOREBAY_OK) return 0;
  fprintf(stderr, "%s: %s\n", what, message != NULL ? message : "?");
  forebay_free(message);
  return 1;
}

enum { kNumLayers = 4, kNumElems = 5000 };

/* The gradient of (w - 1)^2 / 2. */
static int give_gradients(forebay_layers* layers, const int32_t* tensors) {
  static float gradient[kNumElems];
  char* message = NULL;
  const int32_t order[kNumLayers] = {0, 1, 2, 3};
  if (failed(forebay_layers_expect(layers, order, kNumLayers, &message), message, "expect"))
    return 1;
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    forebay_lease* lease = NULL;
    if (failed(forebay_layers_acquire(layers, layer, &lease, &message), message, "acquire"))
      return 1;
    const float* weights = forebay_lease_data(lease, tensors[layer]);
    for (int i = 0; i < kNumElems; ++i) gradient[i] = weights[i] - 1.0f;
    forebay_lease_release(lease);
    if (failed(forebay_layers_add_gradient(layers, tensors[layer], FOREBAY_F32, gradient,
                                           sizeof gradient, &message),
               message, "add_gradient") ||
        failed(forebay_layers_close_layer(layers, layer, &message), message, "close_layer")) {
      return 1;
    }
  }
  return 0;
}

static int train_step(forebay_layers* layers, const int32_t* tensors) {
  char* message = NULL;
  const forebay_group group = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  const forebay_step_options step = {
      .struct_size = sizeof step, .groups = &group, .num_groups = 1, .clip = 100};
  forebay_step_gradients gradients = {.struct_size = sizeof gradients};
  if (failed(forebay_layers_begin_step(layers, &step, &message), message, "begin_step")) return 1;
  if (give_gradients(layers, tensors)) {
    forebay_layers_abandon(layers);
    return 1;
  }
  if (failed(forebay_layers_finish_backward(layers, &gradients, &message), message,
             "finish_backward"))
    return 1;
  printf("step %lld: norm %.4f\n", (long long)forebay_layers_step(layers) + 1, gradients.norm);
  const char* user = "{\"rows\": 7}";
  return failed(forebay_layers_update(layers, user, strlen(user), 1, &message), message, "update");
}

static int start(forebay_layers* layers, const int32_t* tensors) {
  char* message = NULL;
  if (forebay_layers_exists(layers))
    return failed(forebay_layers_open(layers, &message), message, "open");
  static float zeros[kNumElems];
  if (failed(forebay_layers_create(layers, &message), message, "create")) return 1;
  for (int i = 0; i < kNumLayers; ++i) {
    if (failed(forebay_layers_fill(layers, tensors[i], FOREBAY_F32, zeros, sizeof zeros, &message),
               message, "fill")) {
      return 1;
    }
  }
  return failed(forebay_layers_start(layers, NULL, 0, &message), message, "start");
}

static int train(const char* folder) {
  char* message = NULL;
  int32_t tensors[kNumLayers];
  forebay_inventory* inventory = forebay_inventory_create();
  for (int i = 0; i < kNumLayers; ++i) {
    const int64_t shape[] = {50, 100};
    char name[] = "layer0";
    name[5] = (char)('0' + i);
    if (failed(forebay_inventory_begin_layer(inventory, name, strlen(name), &message), message,
               "layer") ||
        failed(forebay_inventory_add(inventory, name, strlen(name), shape, 2, 0, &tensors[i],
                                     &message),
               message, "add")) {
      return 1;
    }
  }
  const forebay_layers_options options = {.struct_size = sizeof options,
                                          .folders = &folder,
                                          .num_folders = 1,
                                          .ram_bytes = 64 << 20,
                                          .weight_dtype = FOREBAY_F32,
                                          .gradient_dtype = FOREBAY_F32,
                                          .optimizer = FOREBAY_ADAMW,
                                          .weights_tier = FOREBAY_TIER_NVME,
                                          .state_tier = FOREBAY_TIER_NVME,
                                          .tile_elems = 4096};
  forebay_layers* layers = NULL;
  const int32_t code = forebay_layers_new(&options, inventory, &layers, &message);
  forebay_inventory_destroy(inventory);
  int result = failed(code, message, "new") || start(layers, tensors);
  for (int i = 0; i < 3 && !result; ++i) result = train_step(layers, tensors);
  float value = 0;
  if (!result) {
    result = failed(
        forebay_layers_read(layers, tensors[3], FOREBAY_MASTER, kNumElems - 1, 1, &value, &message),
        message, "read");
  }
  if (!result)
    printf("committed step %lld: %.6f\n", (long long)forebay_layers_committed_step(layers), value);
  forebay_layers_destroy(layers);
  return result;
}

int main(int argc, char** argv) {
  if (argc != 2 || forebay_abi_version() != FOREBAY_ABI_VERSION) return 2;
  return train(argv[1]);
}
