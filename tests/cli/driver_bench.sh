#!/usr/bin/env bash
# `bench driver` without a GPU: against a stand-in for libcuda that keeps the rules of the calls and ends the process when
# one is broken. It shows that the calls come in order, with the right arguments, and that all is given back; times
# mean nothing here.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

if [ -n "${MB_SANITIZE:-}" ]; then
    echo "SKIP: bench driver against a stand-in: the sanitizers' runtime does not come with the stand-in"
    exit 77
fi
cat >"$WORK/cuda.c" <<'SOURCE'
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
typedef unsigned long long h;
struct prop { int type, handles, location, id; void *p; unsigned char flags[8]; };
struct access { int location, id, flags; };
static size_t live, reserved, mapped, allocated;
static int current, fail_at = -1, calls;
#define NEED(x) do { if (!(x)) { fprintf(stderr, "stand-in: %s: not %s\n", __func__, #x); abort(); } } while (0)
int cuInit(unsigned f) { const char *e = getenv("FAIL_AT"); fail_at = e ? atoi(e) : -1; NEED(!f); return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetName(char *s, int n, int d) { (void)d; snprintf(s, (size_t)n, "stand-in"); return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = &live; return 0; }
int cuCtxSetCurrent(void *c) { NEED(c == &live); current = 1; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { (void)d; NEED(!live && !reserved && !mapped && !allocated); puts(""); return 0; }
int cuMemAddressReserve(h *va, size_t n, size_t align, h at, h f) {
    NEED(current && n && n % (2u << 20) == 0 && !align && !at && !f);
    *va = 1ull << 40; reserved += n; return 0; }
int cuMemAddressFree(h va, size_t n) { NEED(va == 1ull << 40 && reserved == n && !mapped); reserved -= n; return 0; }
int cuMemCreate(h *x, size_t n, const struct prop *p, h f) {
    NEED(p->type == 1 && !p->handles && p->location == 1 && !p->p && !f && n);
    if (calls++ == fail_at) return 2;
    *x = (h)(size_t)malloc(16); *(size_t *)(size_t)*x = n; live += n; return 0; }
int cuMemRelease(h x) { live -= *(size_t *)(size_t)x; free((void *)(size_t)x); return 0; }
int cuMemMap(h va, size_t n, size_t off, h x, h f) {
    NEED(va == (1ull << 40) + mapped && !off && !f && *(size_t *)(size_t)x == n); mapped += n; return 0; }
int cuMemSetAccess(h va, size_t n, const struct access *a, size_t count) {
    NEED(va == 1ull << 40 && n == mapped && a->location == 1 && a->flags == 3 && count == 1); return 0; }
int cuMemUnmap(h va, size_t n) { NEED(va == 1ull << 40 && n == mapped); mapped = 0; return 0; }
int cuMemAlloc_v2(h *p, size_t n) { *p = 4096; allocated = n; return 0; }
int cuMemFree_v2(h p) { NEED(p == 4096 && allocated); allocated = 0; return 0; }
SOURCE
sed -i 's/ puts(""); / /' "$WORK/cuda.c"
"${MB_CC:-cc}" -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$WORK/libcuda.so.1" "$WORK/cuda.c" || fail "does not compile"
export LD_LIBRARY_PATH=$WORK${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
run 0 bench driver --quick --json
json 'len({f["what"] for f in r["figures"]}) == 9 and r["origins"][0]["machine"] == "stand-in"'
json 'max(f["x"] for f in r["figures"]) == 8 << 30 and {f["how"] for f in r["figures"]} == {"2 MB handles", "one handle", "cuMemAlloc"}'
# The driver refuses in the middle: what was made is given back, and the call is named.
FAIL_AT=300 run 1 bench driver --quick
says err "cuMemCreate answered 2"
finish
