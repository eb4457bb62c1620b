#!/usr/bin/env bash
# An installed MoonBright is usable from its prefix: by pkg-config, shared and static, and by the command.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

[ -z "$MB_SANITIZE" ] || skip "the program built here would lack the sanitizers' run time"
header=$MB_SOURCE_DIR/include/moonbright.h
[ -e "$MB_BUILD_DIR/lib/libmoonbright.so" ] || fail "the build directory has no library to install"

prefix=$scratch/prefix
cmake --install "$MB_BUILD_DIR" --prefix "$prefix" >"$scratch/log" || fail "install: $(cat "$scratch/log")"
pc=$(find "$prefix" -name moonbright.pc)
[ -n "$pc" ] || fail "no moonbright.pc below the prefix"
# The prefix of the configured build is not the one installed to, so tell pkg-config.
package=(pkg-config "--define-variable=prefix=$prefix")
export PKG_CONFIG_PATH=${pc%/*}
version=$(awk '$2 ~ /^MB_VERSION_(MAJOR|MINOR|PATCH)$/ { v = v sep $3; sep = "." } END { print v }' "$header")
[ "$("${package[@]}" --modversion moonbright)" = "$version" ] || fail "moonbright.pc has another version"

cat >"$scratch/user.c" <<'PROGRAM'
#include <moonbright.h>
#include <stdio.h>

int main(void)
{
    printf("%d.%d.%d %s\n", MB_VERSION_MAJOR, MB_VERSION_MINOR, MB_VERSION_PATCH, mb_version());
    return 0;
}
PROGRAM
for how in shared static; do
    options=()
    if [ $how = static ]; then
        options=(--static)
    fi
    read -ra flags < <("${package[@]}" "${options[@]}" --cflags --libs moonbright)
    if [ $how = static ]; then
        flags=("${flags[@]/#-lmoonbright/-l:libmoonbright.a}")
    fi
    "$MB_CC" -Wall -Werror "$scratch/user.c" -o "$scratch/user" "${flags[@]}" || fail "$how: does not compile"
    LD_LIBRARY_PATH=${pc%/*/*} expect 0 "$scratch/user"
    [ "$output" = "$version $version" ] || fail "$how: header and library say «$output», not $version"
done

# The header is C++ as well.
cxx=$(command -v c++ || command -v g++) || fail "no C++ compiler; build-essential has one"
"$cxx" -x c++ -std=c++11 -Wall -Wextra -pedantic -Werror -I "$prefix/include" -c "$scratch/user.c" -o "$scratch/user.o" ||
    fail "the header does not compile as C++"

if [ -x "$MB_MOONBRIGHT" ]; then
    [ -x "$prefix/bin/moonbright" ] || fail "the command is not installed"
    env -u LD_LIBRARY_PATH "$prefix/bin/moonbright" --version >/dev/null ||
        fail "the installed command does not run from its prefix"
    [ -f "$prefix/share/man/man1/moonbright.1" ] || fail "no man page"
fi

# The packages import from the prefix alone, and the example in C compiles as its first lines say.
python=$prefix/share/moonbright/python
if [ -d "$python/moonbright" ]; then
    installed=(env -u LD_LIBRARY_PATH -u MOONBRIGHT_LIBRARY_PATH -u MOONBRIGHT_LIB "PYTHONPATH=$python"
        MOONBRIGHT=backend:sim python3 -c)
    expect 0 "${installed[@]}" "import moonbright; print(moonbright.version(), moonbright._lib.find('libmoonbright.so'))"
    [ "$output" = "$version ${pc%/*/*}/libmoonbright.so" ] || fail "the installed package says «$output»"
    expect 0 "${installed[@]}" "
import moonbright_kv as kv
with kv.Cache.on_device(kv.open_device(), layers=2, kv_heads=2, head_dim=64, max_tokens=256, max_sequences=2) as cache:
    seq = cache.open()
    cache.append({seq: 3})
    cache.publish(seq, [1, 2, 3])
    for wrong in (lambda: cache.append({seq: (1 << 32) + 1}), lambda: cache.append({seq: -1}),
                  lambda: cache.attach(seq, [1 << 32]), lambda: cache.reorder([seq], [])):
        try:
            wrong()
        except kv.KVError:
            continue
        raise AssertionError('a number that does not fit was cut off')
"
    [ -f "$prefix/share/man/man1/moonbright-kv.1" ] || fail "no man page of moonbright-kv"
fi
read -ra flags < <("${package[@]}" --cflags --libs moonbright)
"$MB_CC" "$MB_SOURCE_DIR/examples/c/first.c" -o "$scratch/first" "${flags[@]}" || fail "the example does not compile"
LD_LIBRARY_PATH=${pc%/*/*} MOONBRIGHT=backend:sim expect 0 "$scratch/first"
