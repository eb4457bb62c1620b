#!/usr/bin/env bash
# The headers that are installed compile alone, in C and C++, with the warnings that users turn into errors.
# shellcheck source=tests/scripts/lib.sh
. "${0%/*}/lib.sh"

headers=(include/moonbright.h integrations/kv/moonbright_kv.h integrations/torch/moonbright_torch.h)
paths=(-I "$MB_SOURCE_DIR/include")
for header in "${headers[@]}"; do
    [ -e "$MB_SOURCE_DIR/$header" ] || fail "$header is not there"
    paths+=(-I "$MB_SOURCE_DIR/${header%/*}")
done
for header in "$MB_SOURCE_DIR"/integrations/*/moonbright*.h; do
    [[ " ${headers[*]} " == *" ${header#"$MB_SOURCE_DIR/"} "* ]] || fail "${header##*/} is not in this test"
done

# Twice, and with every handle, a structure whose name is a call's, and the list of errors in use.
for header in "${headers[@]}"; do
    printf '#include <%s>\n#include <%s>\n' "${header##*/}" "${header##*/}" >"$scratch/${header##*/}.c"
done
cat >>"$scratch/moonbright.h.c" <<'PROGRAM'
unsigned use(mb_device dev, mb_pool pool, mb_mem mem, mb_event event, mb_stream stream);
unsigned use(mb_device dev, mb_pool pool, mb_mem mem, mb_event event, mb_stream stream)
{
#define COUNT(name, value, text) +1
    struct mb_pointer_info info;
    enum mb_err err = mb_pointer_info(dev, mem, &info);

    if (!err)
        err = mb_event_record(dev, event, stream);
    return (err || !pool ? 1u : 0u) MB_ERR_LIST(COUNT);
}
PROGRAM

warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Werror)
# compile COMPILER STANDARD... [-- WARNING...]: every header.
compile() {
    local compiler=$1 standard header
    shift
    for standard in $1; do
        for header in "${headers[@]}"; do
            header=${header##*/}
            expect 0 "$compiler" "${warnings[@]}" "${@:2}" "${paths[@]}" -std="$standard" -c "$scratch/$header.c" \
                -o "$scratch/out.o"
        done
    done
}
c="c99 c11 c17 gnu11"
cxx="c++11 c++17 c++20"
c_only=(-Wstrict-prototypes -Wmissing-prototypes)
cxx_only=(-x c++ -Wold-style-cast -Wzero-as-null-pointer-constant -Woverloaded-virtual -Wnon-virtual-dtor)
found=0
for compiler in gcc clang clang-14; do
    command -v "$compiler" >/dev/null || continue
    compile "$compiler" "$c" "${c_only[@]}"
    found=$((found + 1))
done
for compiler in g++ clang++ clang++-14; do
    command -v "$compiler" >/dev/null || continue
    compile "$compiler" "$cxx" "${cxx_only[@]}"
    found=$((found + 1))
done
[ "$found" -ge 2 ] || skip "neither gcc nor clang"
# That the flags do something: the same program with a name hidden is refused.
sed 's/unsigned use(mb_device dev,/unsigned use(mb_device use,/' "$scratch/moonbright.h.c" >"$scratch/bad.h.c"
headers=(bad.h)
if (compile g++ c++17 -x c++) >/dev/null 2>&1; then fail "a hidden name was let through"; fi
