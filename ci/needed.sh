# Installs the Debian packages that a script needs. Other scripts source it, call `need` for each, then `install_needed`.
packages=() installer=$PWD/ci/install.sh # before a script changes its folder
need() { # need PACKAGE COMMAND-OR-FILE
  command -v "$2" >/dev/null || [[ -e $2 ]] || packages+=("$1")
}
install_needed() {
  ((${#packages[@]})) || return 0
  echo "installing ${packages[*]}" >&2
  "$installer" "${packages[@]}"
  packages=()
}
