// A library that OpenLibrary finds, in place of NVIDIA's.
int forebay_library_twin(void) {
  return 1;
}
