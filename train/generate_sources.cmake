# Text generation's part of the train library (train/CMakeLists.txt).
set(FOREBAY_TRAIN_GENERATE_SOURCES generate.cc sampler.cc)
