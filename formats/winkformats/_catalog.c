/* Blocks of the catalog: see winkfs/container/ondisk/block.py, which has their layout. */
#include "_native.h"

#define BLOCK 1024      /* rows of a block, at most */
#define AREA (1 << 20)  /* rows times bytes of the longest name of a block that has several rows */
#define STORED 10       /* columns of a block: those of a table, then `shared` and `rest` */
#define HEADS (16 + 16 * STORED)
enum { POS = 0, SIZE = 2, MTIME, POINTER, CTIME, COLUMNS = 8 }; /* see winkfs/container/table.py */

/* Decode n numbers of `width` bytes, to each of which the base is added; 8 bytes follow them. */
static void widen(Bytes p, uint64_t n, uint64_t width, uint64_t base, uint64_t *into)
{
    uint64_t mask = width < 8 ? (UINT64_C(1) << 8 * width) - 1 : UINT64_MAX;
    uint16_t two;
    uint32_t four;
    switch (width) {
    case 0:
        for (uint64_t i = 0; i < n; i++)
            into[i] = base;
        break;
    case 1:
        for (uint64_t i = 0; i < n; i++)
            into[i] = base + p[i];
        break;
    case 2:
        for (uint64_t i = 0; i < n; i++)
            memcpy(&two, p + 2 * i, 2), into[i] = base + two;
        break;
    case 4:
        for (uint64_t i = 0; i < n; i++)
            memcpy(&four, p + 4 * i, 4), into[i] = base + four;
        break;
    default:
        for (uint64_t i = 0; i < n; i++)
            into[i] = base + (le64(p + width * i) & mask);
    }
}

/* Decode a block, data[pos : pos + size], which 8 bytes follow, into the rows from `row` on of n -> how
 * many rows it has; 0: it is no such block. parts uint64[2, n]: of each name the bytes that it shares,
 * and the offset of its other ones in `data`; ends: see blocks. */
static uint64_t block(Bytes data, int64_t pos, int64_t size, uint64_t row, uint64_t n, uint64_t *into,
                      uint64_t *parts, int64_t *ends)
{
    if (size < HEADS)
        return 0;
    Bytes p = data + pos, at = p + HEADS, stop = p + size;
    uint64_t count = le64(p), tail = le64(p + 8), before = 0, longest = 0;
    if (!count || count > BLOCK || count > n - row)
        return 0;
    for (int i = 0; i < STORED; i++) {
        uint64_t base = le64(p + 16 + 16 * i), width = le64(p + 24 + 16 * i);
        uint64_t bytes = (count * (width & 15) + 7) & ~UINT64_C(7);
        if (width > 8 || bytes > (uint64_t)(stop - at))
            return 0;
        uint64_t *column = i < COLUMNS ? into + (uint64_t)i * n : parts + (uint64_t)(i - COLUMNS) * n;
        widen(at, count, width, base, column + row);
        at += bytes;
    }
    if (tail != (uint64_t)(stop - at))
        return 0;
    for (uint64_t i = row; i < row + count; i++) {
        uint64_t shared = parts[i], rest = parts[n + i];
        if (shared > before || rest > (uint64_t)(stop - at))
            return 0;
        parts[n + i] = (uint64_t)(at - data);
        at += rest;
        before = shared + rest;
        longest = before > longest ? before : longest;
        ends[i + 1] = ends[i] + (int64_t)before;
    }
    return at != stop || (count > 1 && longest > AREA / count) ? 0 : count;
}

/* blocks(data, at int64[k], lengths int64[k], into int64[8, n], ends int64[n + 1]) -> bytearray: the
 * names, joined, of the n rows of k blocks, whose columns are written to `into`, and the start of the
 * first name and the end of each to `ends`; None: these are no such blocks, or 8 bytes do not follow. */
PyObject *blocks(PyObject *module, PyObject *args)
{
    Py_buffer b[5] = {0};
    PyObject *found = NULL;
    uint64_t *parts = NULL, row = 0, count = 1;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*", b, b + 1, b + 2, b + 3, b + 4))
        goto end;
    Py_ssize_t k = b[1].len / 8, n = b[4].len / 8 - 1;
    Bytes data = b[0].buf;
    const int64_t *at = b[1].buf, *lengths = b[2].buf;
    int64_t *ends = b[4].buf;
    uint64_t *into = b[3].buf, *column[COLUMNS];
    if (lengths_differ(b[1].len, k) || lengths_differ(b[2].len, k) || lengths_differ(b[3].len, COLUMNS * n)
        || lengths_differ(b[4].len, n + 1))
        goto end;
    if (!(parts = PyMem_Malloc(16 * (size_t)n + 1))) {
        PyErr_NoMemory();
        goto end;
    }
    ends[0] = 0;
    for (Py_ssize_t i = 0; count && i < k; i++) {
        bool within = at[i] >= 0 && at[i] <= b[0].len - 8 && lengths[i] <= b[0].len - 8 - at[i];
        count = within ? block(data, at[i], lengths[i], row, (uint64_t)n, into, parts, ends) : 0;
        row += count;
    }
    if (!count || row != (uint64_t)n) {
        Py_INCREF(found = Py_None);
        goto end;
    }
    for (int i = 0; i < COLUMNS; i++)
        column[i] = into + i * n;
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t stored = column[POINTER][i];
        column[CTIME][i] += column[MTIME][i];
        if (stored + 1 > 1)
            column[POINTER][i] = column[POS][i] - column[SIZE][i] - stored;
    }
    if (!(found = PyByteArray_FromStringAndSize(NULL, ends[n])))
        goto end;
    uint8_t *name = (uint8_t *)PyByteArray_AS_STRING(found), *last = name;
    for (Py_ssize_t i = 0; i < n; i++) {
        size_t shared = parts[i], size = (size_t)(ends[i + 1] - ends[i]);
        memcpy(name, last, shared);
        memcpy(name + shared, data + parts[n + i], size - shared);
        last = name;
        name += size;
    }
end:
    PyMem_Free(parts);
    release(b, 5);
    return found;
}

/* paths(data, ends int64[n + 1], before, found int64[3, n]): of each name data[ends[i] : ends[i + 1]] how
 * many slashes it has, where the last one is in it, if there is one, and how many bytes it shares with
 * the name before; `before` is that before the first one. */
PyObject *paths(PyObject *module, PyObject *args)
{
    Py_buffer b[4] = {0};
    PyObject *done = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*w*", b, b + 1, b + 2, b + 3))
        goto end;
    Py_ssize_t n = b[1].len / 8 - 1;
    if (lengths_differ(b[1].len, n + 1) || lengths_differ(b[3].len, 3 * n))
        goto end;
    const int64_t *ends = b[1].buf;
    int64_t *levels = b[3].buf, *lasts = levels + n, *shared = lasts + n, level = 0, last = INT64_MAX;
    Bytes before = b[2].buf;
    Py_ssize_t length = b[2].len;
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t start = ends[i], end = ends[i + 1], same = 0;
        if (start < 0 || end < start || end > b[0].len) {
            PyErr_SetString(PyExc_ValueError, "a name is outside of its buffer");
            goto end;
        }
        Bytes name = (Bytes)b[0].buf + start;
        int64_t size = end - start, least = size < length ? size : length;
        while (same + 8 <= least && le64(name + same) == le64(before + same))
            same += 8;
        while (same < least && name[same] == before[same])
            same++;
        int64_t at = same;
        if (last >= same) /* its slashes are not all in what is shared */
            at = level = last = 0;
        for (; at < size; at++)
            if (name[at] == '/') {
                level++;
                last = at;
            }
        levels[i] = level;
        lasts[i] = last;
        shared[i] = same;
        before = name;
        length = size;
        if (!level)
            last = INT64_MAX;
    }
    Py_INCREF(done = Py_None);
end:
    release(b, 4);
    return done;
}
