/* Common parts of the C sources: numbers in the byte order of the files, and checks of arguments. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "little-endian processors only: others take the path in Python"
#endif

/* xxHash 0.8.2, unchanged. The prefetcher of the processor stops at the end of a page. */
#define XXH_INLINE_ALL
#define XXH_PREFETCH_DIST 4096
#if defined(__x86_64__) && !defined(__AVX2__) /* code for all such processors, and for those with AVX2 */
#define XXH_X86DISPATCH
#define XXH_DISPATCH_AVX2 1
#define XXH_TARGET_AVX2 __attribute__((target("avx2")))
#include <immintrin.h>
#endif
#include "xxhash.h"

#ifdef Py_LIMITED_API /* one module for all Pythons, see setup.py: it has no macros that access objects */
#define PyBytes_AS_STRING PyBytes_AsString
#define PyBytes_GET_SIZE PyBytes_Size
#define PyByteArray_AS_STRING PyByteArray_AsString
#define PyList_GET_SIZE PyList_Size
#define PyList_GET_ITEM PyList_GetItem
#define PyList_SET_ITEM PyList_SetItem
#define PyTuple_GET_SIZE PyTuple_Size
#define PyTuple_GET_ITEM PyTuple_GetItem
#define PyDict_GET_SIZE PyDict_Size
#endif

#define AHEAD 16     /* rows whose bytes are prefetched */
#define LINE 64      /* bytes of a cache line */
#define LINES 24     /* most cache lines of an entry that are prefetched */

#define FRAME (INT64_C(1) << 62) /* flag in the skipped bytes of an extent: its entry is a frame */

typedef const uint8_t *Bytes;

static inline uint32_t once16(Bytes p)
{
    const volatile uint8_t *v = p;
    uint32_t high = v[0];
    return high << 8 | v[1];
}

static inline uint32_t once32(Bytes p)
{
    uint32_t high = once16(p);
    return high << 16 | once16(p + 2);
}

static inline uint64_t le64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline int64_t be64(Bytes p)
{
    return (int64_t)__builtin_bswap64(le64(p));
}

static inline void put64(uint8_t *p, int64_t value)
{
    uint64_t v = __builtin_bswap64((uint64_t)value);
    memcpy(p, &v, 8);
}

static inline void put32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static inline void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* Prefetch `size` bytes from `pos` on, and a line more, within the limit. Both numbers come from files,
 * so nothing is added to a size before it is bounded. */
static inline void bring(Bytes data, int64_t limit, int64_t pos, int64_t size)
{
    if (pos < 0 || pos > limit)
        return;
    int64_t left = limit - pos;
    size = size < left - LINE ? size + LINE : left;
    for (int64_t i = 0; i < size && i < LINES * LINE; i += LINE)
        __builtin_prefetch(data + pos + i);
}

#ifdef XXH_X86DISPATCH
XXH_TARGET_AVX2 XXH_NO_INLINE uint64_t xxh3_avx2(Bytes p, size_t n, uint64_t seed)
{
    return XXH3_hashLong_64b_withSeed_internal(p, n, seed, XXH3_accumulate_avx2, XXH3_scrambleAcc_avx2,
                                               XXH3_initCustomSecret_avx2);
}

XXH_TARGET_AVX2 XXH_NO_INLINE void update_avx2(XXH3_state_t *state, Bytes p, size_t n)
{
    XXH3_update(state, p, n, XXH3_accumulate_avx2, XXH3_scrambleAcc_avx2);
}
#endif

static inline uint64_t xxh3(Bytes p, size_t n, uint64_t seed)
{
#ifdef XXH_X86DISPATCH
    if (n > XXH3_MIDSIZE_MAX && __builtin_cpu_supports("avx2"))
        return xxh3_avx2(p, n, seed);
#endif
    return XXH3_64bits_withSeed(p, n, seed);
}

/* Return the hash of two concatenated ranges of bytes. */
static inline uint64_t xxh3_two(Bytes head, size_t m, Bytes body, size_t n, uint64_t seed)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    XXH3_64bits_update(&state, head, m);
#ifdef XXH_X86DISPATCH
    if (__builtin_cpu_supports("avx2"))
        update_avx2(&state, body, n);
    else
#endif
        XXH3_64bits_update(&state, body, n);
    return XXH3_64bits_digest(&state);
}

static inline void release(Py_buffer *buffers, Py_ssize_t n)
{
    while (n-- > 0)
        PyBuffer_Release(buffers + n);
}

static inline bool lengths_differ(Py_ssize_t got, Py_ssize_t rows)
{
    if (got == 8 * rows)
        return false;
    PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    return true;
}

/* Hidden, so that a function of another library with such a name is not mixed up with it. */
#define FUNCTION(name) \
    __attribute__((visibility("hidden"))) PyObject *name(PyObject *module, PyObject *args)
FUNCTION(blocks); /* _catalog.c */
FUNCTION(paths);
FUNCTION(inodes); /* _get.c */
FUNCTION(contents);
FUNCTION(gather);
FUNCTION(files);
FUNCTION(table);
FUNCTION(reader);
FUNCTION(read_files); /* _files.c */
FUNCTION(names_in);
FUNCTION(pairs); /* _put.c */
FUNCTION(encode);
FUNCTION(entries);
