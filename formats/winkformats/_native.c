/* Fast paths for the standard layout of new containers, optional: `native.py` says which path runs.
 *
 * Each function does what a few lines in Python do, to the bit: those are the reference. What is
 * not plain is left to them, by an answer that says so. No length, offset or count that comes from
 * a file is used before it is held against the end of its buffer, and it is read but once where the
 * buffer may be a mapping, which others change. Arrays are contiguous, of int64 or uint64.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <fcntl.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "_xxh3.h"

#define VERSION 1    /* another with each change of a function here: see native.py */
#define PLAIN 2048   /* bytes of the largest inode entry that is read here */
#define SMALL 8192   /* bytes of a content that is checked on the stack */
#define PASSED 4096  /* cells that a search passes here */
#define ALIKE 64     /* cells that the search for one file passes */
#define AHEAD 16     /* rows whose bytes are brought into the cache before they are needed */
#define LINE 64      /* bytes of a cache line, and */
#define LINES 24     /* of an entry, that are brought in at most */

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

static inline void bring(Bytes data, int64_t limit, int64_t pos, int64_t size)
{
    if (pos < 0 || pos > limit)
        return;
    size = size < limit - pos ? size : limit - pos;
    for (int64_t i = 0; i < size && i < LINES * LINE; i += LINE)
        __builtin_prefetch(data + pos + i);
}

static void release(Py_buffer *buffers, Py_ssize_t n)
{
    while (n-- > 0)
        PyBuffer_Release(buffers + n);
}

static bool lengths_differ(Py_ssize_t got, Py_ssize_t rows)
{
    if (got == 8 * rows)
        return false;
    PyErr_SetString(PyExc_ValueError, "columns of different lengths");
    return true;
}

/* --- hashes --- */

/* hash_each(buffers, seeds or None) -> bytearray of uint64[n]: as many as the shorter has. */
static PyObject *hash_each(PyObject *module, PyObject *args)
{
    PyObject *given, *source = NULL, *item, *found = NULL;
    Py_buffer seeds = {0};
    if (!PyArg_ParseTuple(args, "Oz*", &given, &seeds) || !(source = PyObject_GetIter(given)))
        goto end;
    Py_ssize_t n = 0, room = seeds.buf ? seeds.len / 8 : PyObject_LengthHint(given, 1024);
    found = room < 0 ? NULL : PyByteArray_FromStringAndSize(NULL, 8 * room);
    while (found && !(seeds.buf && n == room) && (item = PyIter_Next(source))) {
        Py_buffer one = {0};
        uint64_t seed = seeds.buf ? ((uint64_t *)seeds.buf)[n] : 0;
        if (n == room && PyByteArray_Resize(found, 8 * (room = 2 * room + 64)) < 0)
            Py_CLEAR(found);
        else if (PyBytes_CheckExact(item))
            ((uint64_t *)PyByteArray_AS_STRING(found))[n++] =
                xxh3((Bytes)PyBytes_AS_STRING(item), (size_t)PyBytes_GET_SIZE(item), seed);
        else if (PyObject_GetBuffer(item, &one, PyBUF_SIMPLE) < 0)
            Py_CLEAR(found);
        else {
            ((uint64_t *)PyByteArray_AS_STRING(found))[n++] = xxh3(one.buf, (size_t)one.len, seed);
            PyBuffer_Release(&one);
        }
        Py_DECREF(item);
    }
    if (found && (PyErr_Occurred() || PyByteArray_Resize(found, 8 * n) < 0))
        Py_CLEAR(found);
end:
    Py_XDECREF(source);
    PyBuffer_Release(&seeds);
    return found;
}

/* hash_at(data, starts, stops, seeds or None, into): XXH3 of data[starts[i]:stops[i]]. */
static PyObject *hash_at(PyObject *module, PyObject *args)
{
    Py_buffer b[5] = {0};
    if (!PyArg_ParseTuple(args, "y*y*y*z*w*", b, b + 1, b + 2, b + 3, b + 4)) {
        release(b, 5);
        return NULL;
    }
    Py_ssize_t n = b[1].len / 8;
    bool wrong = lengths_differ(b[1].len, n) || lengths_differ(b[2].len, n)
        || lengths_differ(b[4].len, n) || (b[3].buf && lengths_differ(b[3].len, n));
    if (!wrong) {
        const int64_t *starts = b[1].buf, *stops = b[2].buf;
        const uint64_t *seeds = b[3].buf;
        uint64_t *into = b[4].buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++) {
            Py_ssize_t start = starts[i], stop = stops[i];
            Py_ssize_t size = PySlice_AdjustIndices(b[0].len, &start, &stop, 1);
            into[i] = xxh3((Bytes)b[0].buf + (size ? start : 0), (size_t)size, seeds ? seeds[i] : 0);
        }
        Py_END_ALLOW_THREADS
    }
    release(b, 5);
    if (wrong)
        return NULL;
    Py_RETURN_NONE;
}

/* --- entries --- */

/* Bytes of the entry at data[at:limit], 0: it is not all there. */
static inline int64_t entry_size(Bytes data, int64_t limit, int64_t at)
{
    if (at < 0 || limit - at < 11)
        return 0;
    int64_t size = 11 + (int64_t)once16(data + at + 1);
    if (limit - at < size)
        return 0;
    size += once32(data + at + size - 8);
    return limit - at < size ? 0 : size;
}

/* walk(data) -> (bytearray of int64[n]: where its whole entries begin, where the last one ends) */
static PyObject *walk(PyObject *module, PyObject *args)
{
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data))
        return NULL;
    int64_t at = 0, size, n = 0, room = data.len / 256 + 64;
    PyObject *found = PyByteArray_FromStringAndSize(NULL, 8 * room);
    while (found && (size = entry_size(data.buf, data.len, at))) {
        if (n == room && PyByteArray_Resize(found, 8 * (room *= 2)) < 0)
            Py_CLEAR(found);
        else
            ((int64_t *)PyByteArray_AS_STRING(found))[n++] = at;
        at += size;
    }
    PyBuffer_Release(&data);
    if (!found || PyByteArray_Resize(found, 8 * n) < 0) {
        Py_XDECREF(found);
        return NULL;
    }
    return Py_BuildValue("(NL)", found, (long long)at);
}

/* --- cells of two words --- */

typedef struct {
    Bytes first;
    int64_t count, free, deleted;
} Cells;

/* find_many(cells, HTSIZE, HTFREE, HTDEL, s, bits, pointers, slots) -> rows that were not decided:
 * their slot is HTSIZE. The others are as `table.find_many` has them. */
static PyObject *find_many(PyObject *module, PyObject *args)
{
    Py_buffer b[5] = {0};
    long long count, free_mark, deleted;
    if (!PyArg_ParseTuple(args, "y*LLLy*y*w*w*", b, &count, &free_mark, &deleted, b + 1, b + 2,
                          b + 3, b + 4)) {
        release(b, 5);
        return NULL;
    }
    Py_ssize_t n = b[1].len / 8, left = 0;
    bool wrong = lengths_differ(b[1].len, n) || lengths_differ(b[2].len, n)
        || lengths_differ(b[3].len, n) || lengths_differ(b[4].len, n);
    if (!wrong && (count < 1 || count > b[0].len / 16)) {
        PyErr_SetString(PyExc_ValueError, "fewer cells than HTSIZE");
        wrong = true;
    }
    if (!wrong) {
        Bytes cells = b[0].buf;
        const uint64_t *s = b[1].buf, *bits = b[2].buf;
        int64_t *pointers = b[3].buf, *slots = b[4].buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++)
            __builtin_prefetch(cells + 16 * (slots[i] = (int64_t)(bits[i] % (uint64_t)count)));
        for (Py_ssize_t i = 0; i < n; i++) {
            int64_t slot = slots[i], most = count < PASSED ? count : PASSED, pointer = 0;
            slots[i] = count;
            pointers[i] = 0;
            for (; most > 0; most--) {
                pointer = be64(cells + 16 * slot);
                if (pointer == free_mark) {
                    slots[i] = ~slot;
                    break;
                }
                if ((uint64_t)be64(cells + 16 * slot + 8) == s[i] && pointer != deleted) {
                    slots[i] = slot;
                    pointers[i] = pointer;
                    break;
                }
                if (++slot == count)
                    slot = 0;
            }
            left += slots[i] == count;
        }
        Py_END_ALLOW_THREADS
    }
    release(b, 5);
    return wrong ? NULL : PyLong_FromSsize_t(left);
}

/* --- plain files: an inode of one extent, which is the whole value of an entry --- */

typedef struct {
    Bytes data;
    int64_t limit, isz, pair; /* bytes: of the file, of an inode, of a pair or triple */
    uint64_t contid;
} File;

/* The content of the file whose inode entry stands at `pos`: where its entry is, and its bytes.
 * -> whether it is a plain file with this key, and the inode is good. */
static bool plain_inode(const File *f, int64_t pos, Bytes key, int64_t key_len, int64_t *pointer,
                        int64_t *size)
{
    uint8_t copy[PLAIN];
    int64_t width = 11 + key_len + f->isz;
    if (pos <= 0 || key_len > 65535 || width > PLAIN || f->limit - pos < width)
        return false;
    memcpy(copy, f->data + pos, (size_t)width);
    Bytes inode = copy + 7 + key_len;
    if (copy[0] || once16(copy + 1) != key_len || memcmp(copy + 3, key, (size_t)key_len)
        || once32(inode - 4) != f->isz
        || (uint32_t)xxh3(copy + 1, (size_t)width - 5, f->contid + (uint64_t)pos)
            != once32(copy + width - 4))
        return false;
    int64_t count = be64(inode + 48);
    Bytes extent = inode + 56;
    if (be64(extent + f->pair - 8) < 0) { /* attributes stand before it */
        if (f->isz < 56 + 2 * f->pair)
            return false;
        extent += f->pair;
        count--;
    }
    *pointer = be64(extent);
    *size = be64(extent + f->pair - 8);
    return count == 1 && *pointer > 0 && *size >= 0 && *size == be64(inode + 24)
        && (f->pair == 16 || be64(extent + 8) == 0);
}

/* The value of the entry at `pos`, of `size` bytes; NULL without an error: it is another, or bad. */
static PyObject *content(const File *f, int64_t pos, int64_t size)
{
    uint8_t small[SMALL], *copy = small;
    if (pos <= 0 || size < 0 || f->limit - pos < 11 || f->limit - pos - 11 < size)
        return NULL;
    int64_t key_len = once16(f->data + pos + 1), body = 6 + key_len + size;
    if (f->limit - pos - 5 < body)
        return NULL;
    if (body + 4 > SMALL && !(copy = PyMem_Malloc((size_t)body + 4)))
        return PyErr_NoMemory();
    PyObject *found = NULL; /* what is handed out is what was checked: a mapping may change */
    memcpy(copy, f->data + pos + 1, (size_t)body + 4);
    if (once16(copy) == key_len && once32(copy + 2 + key_len) == size
        && (uint32_t)xxh3(copy, (size_t)body, f->contid + (uint64_t)pos) == once32(copy + body))
        found = PyBytes_FromStringAndSize((char *)copy + 6 + key_len, size);
    if (copy != small)
        PyMem_Free(copy);
    return found;
}

static bool file_of(File *f, const Py_buffer *view, long long limit, long long isz, int pairoff,
                    unsigned long long contid)
{
    *f = (File){view->buf, limit, isz, pairoff ? 24 : 16, contid};
    if (limit >= 0 && limit <= view->len && isz >= 56 + f->pair && isz <= PLAIN)
        return true;
    PyErr_SetString(PyExc_ValueError, "no such file or inode");
    return false;
}

/* inodes(data, limit, isz, pairoff, CONTID, keys, pos, pointers, sizes): of the files with these
 * keys, whose inodes are thought to be at `pos`. pointers[i] 0: no plain file, or damaged. */
static PyObject *inodes(PyObject *module, PyObject *args)
{
    Py_buffer b[4] = {0};
    long long limit, isz;
    int pairoff;
    unsigned long long contid;
    PyObject *keys;
    File f;
    bool good = PyArg_ParseTuple(args, "y*LLpKO!y*w*w*", b, &limit, &isz, &pairoff, &contid,
                                 &PyList_Type, &keys, b + 1, b + 2, b + 3);
    Py_ssize_t n = b[1].len / 8;
    good = good && !lengths_differ(b[1].len, n) && !lengths_differ(b[2].len, n)
        && !lengths_differ(b[3].len, n) && file_of(&f, b, limit, isz, pairoff, contid);
    if (good && PyList_GET_SIZE(keys) != n) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        good = false;
    }
    const int64_t *pos = b[1].buf;
    int64_t *pointers = b[2].buf, *sizes = b[3].buf;
    for (Py_ssize_t i = 0; good && i < AHEAD && i < n; i++)
        bring(f.data, f.limit, pos[i], isz + LINE);
    for (Py_ssize_t i = 0; good && i < n; i++) {
        if (i + AHEAD < n)
            bring(f.data, f.limit, pos[i + AHEAD], isz + LINE);
        PyObject *key = PyList_GET_ITEM(keys, i);
        good = PyBytes_Check(key);
        if (!good)
            PyErr_SetString(PyExc_TypeError, "keys are bytes");
        else if (!plain_inode(&f, pos[i], (Bytes)PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key),
                              pointers + i, sizes + i))
            pointers[i] = 0;
    }
    release(b, 4);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}

/* contents(data, limit, isz, pairoff, CONTID, pointers, sizes, found): found[i] becomes the content
 * of the file that `inodes` has said this of, and stays what it is where there is none. */
static PyObject *contents(PyObject *module, PyObject *args)
{
    Py_buffer b[3] = {0};
    long long limit, isz;
    int pairoff;
    unsigned long long contid;
    PyObject *found;
    File f;
    bool good = PyArg_ParseTuple(args, "y*LLpKy*y*O!", b, &limit, &isz, &pairoff, &contid, b + 1,
                                 b + 2, &PyList_Type, &found);
    Py_ssize_t n = b[1].len / 8;
    good = good && !lengths_differ(b[1].len, n) && !lengths_differ(b[2].len, n)
        && file_of(&f, b, limit, isz, pairoff, contid);
    const int64_t *pos = b[1].buf, *sizes = b[2].buf;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        if (i + AHEAD < n)
            bring(f.data, f.limit, pos[i + AHEAD], sizes[i + AHEAD] + LINE);
        PyObject *value = pos[i] > 0 ? content(&f, pos[i], sizes[i]) : NULL;
        if (value)
            good = PyList_SetItem(found, i, value) == 0; /* an IndexError of a shorter list */
        else
            good = !PyErr_Occurred();
    }
    release(b, 3);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}

/* --- one file --- */

typedef struct {
    Py_buffer data, table;
    PyObject *overlay, *doubts;
    int files[2]; /* our own descriptors of what is mapped; -1: of what is in memory */
    File file;
    Cells cells;
    int64_t table_end, filesize_at; /* filesize_at < 0: nobody else writes */
    uint64_t filesize, due;         /* as it stands in memory; nanoseconds */
} Reader;

static void reader_free(PyObject *capsule)
{
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    PyBuffer_Release(&r->data);
    PyBuffer_Release(&r->table);
    Py_XDECREF(r->overlay);
    Py_XDECREF(r->doubts);
    for (int i = 0; i < 2; i++)
        if (r->files[i] >= 0)
            close(r->files[i]);
    PyMem_Free(r);
}

/* Whether a file has at least so many bytes still: to look behind its end would end the process.
 * Nobody goes by the place of the descriptor, and to set it takes half the time of fstat. */
static inline bool still_has(int file, int64_t bytes)
{
    return file < 0 || lseek(file, 0, SEEK_END) >= bytes;
}

static int64_t position(const Cells *c, uint64_t s)
{
    int64_t slot = (int64_t)((s & INT64_MAX) % (uint64_t)c->count);
    for (int i = 0; i < ALIKE && slot < c->count; i++, slot++) {
        int64_t pointer = be64(c->first + 16 * slot);
        if (pointer == c->free)
            return 0;
        if ((uint64_t)be64(c->first + 16 * slot + 8) == s && pointer != c->deleted)
            return pointer;
    }
    return 0;
}

/* The key of a name, str, in `room`; of bytes, which are a key, these. -> its bytes, -1: neither. */
static Py_ssize_t key_of(PyObject *given, char *room, Bytes *key)
{
    Py_ssize_t n;
    if (PyBytes_Check(given)) {
        *key = (Bytes)PyBytes_AS_STRING(given);
        return PyBytes_GET_SIZE(given);
    }
    const char *name = PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &n) : NULL;
    if (!name || n > PLAIN - 3) {
        PyErr_Clear(); /* of bytes that are no UTF-8 */
        return -1;
    }
    memcpy(room, name, (size_t)n);
    memcpy(room + n, "/I0", 3);
    *key = (Bytes)room;
    return n + 3;
}

/* read(name or key, most) -> the content of a plain file of at most `most` bytes; None: the
 * ordinary way decides. */
static PyObject *reader_read(PyObject *capsule, PyObject *const *args, Py_ssize_t count)
{
    char room[PLAIN];
    Bytes key;
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    if (!r || count < 1 || count > 2) {
        PyErr_SetString(PyExc_TypeError, "read(name or key, most)");
        return NULL;
    }
    int64_t most = count == 2 ? PyLong_AsLongLong(args[1]) : INT64_MAX, pointer, size, pos = -1;
    if (most == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t key_len = key_of(args[0], room, &key);
    if (key_len < 0)
        Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(r->doubts); i++) {
        Py_ssize_t some = PyObject_Size(PyTuple_GET_ITEM(r->doubts, i));
        if (some < 0)
            return NULL;
        if (some)
            Py_RETURN_NONE;
    }
    if (!still_has(r->files[0], r->data.len) || !still_has(r->files[1], r->table_end))
        Py_RETURN_NONE;
    if (r->filesize_at >= 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (le64(r->file.data + r->filesize_at) != r->filesize
            || (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec > r->due)
            Py_RETURN_NONE;
    }
    if (PyDict_GET_SIZE(r->overlay)) {
        PyObject *own = PyBytes_FromStringAndSize((const char *)key, key_len);
        PyObject *known = own ? PyDict_GetItemWithError(r->overlay, own) : NULL;
        if (known)
            pos = PyLong_AsLongLong(known);
        Py_XDECREF(own);
        if (PyErr_Occurred())
            return NULL;
    }
    if (pos < 0)
        pos = position(&r->cells, xxh3(key, (size_t)key_len, 0));
    if (plain_inode(&r->file, pos, key, key_len, &pointer, &size) && size <= most) {
        PyObject *found = content(&r->file, pointer, size);
        if (found || PyErr_Occurred())
            return found;
    }
    Py_RETURN_NONE;
}

static PyMethodDef reader_def = {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL,
                                 "read(name or key, most) -> content, or None"};

/* reader(data, limit, isz, pairoff, CONTID, table, first, HTSIZE, HTFREE, HTDEL, overlay, doubts,
 *        data_fd, table_fd, filesize_at, filesize, due) -> a function: see `reader_read`. The
 * descriptors are duplicated; -1: there is none to look at. */
static PyObject *reader(PyObject *module, PyObject *args)
{
    long long limit, isz, first, count, free_mark, deleted, filesize_at;
    int pairoff, fds[2];
    unsigned long long contid, filesize, due;
    Reader *r = PyMem_Calloc(1, sizeof *r);
    if (!r)
        return PyErr_NoMemory();
    r->files[0] = r->files[1] = -1;
    PyObject *overlay, *doubts, *found = NULL;
    PyObject *capsule = PyCapsule_New(r, "reader", reader_free);
    if (!capsule) {
        PyMem_Free(r);
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "y*LLpKy*LLLLO!O!iiLKK", &r->data, &limit, &isz, &pairoff, &contid,
                          &r->table, &first, &count, &free_mark, &deleted, &PyDict_Type, &overlay,
                          &PyTuple_Type, &doubts, fds, fds + 1, &filesize_at, &filesize, &due)
        || !file_of(&r->file, &r->data, limit, isz, pairoff, contid))
        goto end;
    if (first < 0 || first > r->table.len || count < 1 || count > (r->table.len - first) / 16
        || filesize_at > r->data.len - 8) {
        PyErr_SetString(PyExc_ValueError, "no such table");
        goto end;
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0 && (r->files[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0)) < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            goto end;
        }
    r->overlay = Py_NewRef(overlay);
    r->doubts = Py_NewRef(doubts);
    r->cells = (Cells){(Bytes)r->table.buf + first, count, free_mark, deleted};
    r->table_end = first + 16 * count;
    r->filesize_at = filesize_at;
    r->filesize = filesize;
    r->due = due;
    found = PyCFunction_New(&reader_def, capsule);
end:
    Py_DECREF(capsule);
    return found;
}

/* --- many files, written --- */

/* A pair of name and content in a list, NULL: another thing stands there. */
static PyObject *pair_at(PyObject *files, Py_ssize_t i)
{
    PyObject *pair = PyList_GET_ITEM(files, i);
    return PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2
            && PyBytes_CheckExact(PyTuple_GET_ITEM(pair, 1))
        ? pair : NULL;
}

/* size_of(files, start) -> bytes of the contents of files[start:], -1: not all are pairs with bytes.
 * The files lie anywhere in memory, and are mostly looked at for the first time. */
static PyObject *size_of(PyObject *module, PyObject *args)
{
    PyObject *files, *pair;
    Py_ssize_t start, total = 0;
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &files, &start))
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(files);
    for (Py_ssize_t i = start < 0 ? 0 : start; i < n; i++) {
        if (i + 2 * AHEAD < n)
            __builtin_prefetch(PyList_GET_ITEM(files, i + 2 * AHEAD));
        if (i + AHEAD < n && (pair = PyList_GET_ITEM(files, i + AHEAD))
            && PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2) {
            __builtin_prefetch(PyTuple_GET_ITEM(pair, 0));
            __builtin_prefetch(PyTuple_GET_ITEM(pair, 1));
        }
        if (!(pair = pair_at(files, i)))
            return PyLong_FromLong(-1);
        total += PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 1));
    }
    return PyLong_FromSsize_t(total);
}

/* pairs(files, key_lengths, lengths) -> (keys of their inodes, contents), and the bytes of each in
 * int64[n]; None: not all are pairs of str or bytes, without NUL, and bytes. */
static PyObject *pairs(PyObject *module, PyObject *args)
{
    PyObject *files, *keys = NULL, *contents = NULL;
    Py_buffer b[2] = {0};
    bool plain = PyArg_ParseTuple(args, "O!w*w*", &PyList_Type, &files, b, b + 1);
    Py_ssize_t n = plain ? PyList_GET_SIZE(files) : 0;
    plain = plain && !lengths_differ(b[0].len, n) && !lengths_differ(b[1].len, n)
        && (keys = PyList_New(n)) && (contents = PyList_New(n));
    for (Py_ssize_t i = 0; plain && i < n; i++) {
        PyObject *pair = pair_at(files, i), *name = pair ? PyTuple_GET_ITEM(pair, 0) : NULL, *key;
        const char *text = NULL;
        Py_ssize_t size = 0;
        if (name && PyBytes_CheckExact(name)) {
            text = PyBytes_AS_STRING(name);
            size = PyBytes_GET_SIZE(name);
        } else if (name && PyUnicode_CheckExact(name) && !(text = PyUnicode_AsUTF8AndSize(name, &size)))
            PyErr_Clear(); /* of bytes that are no UTF-8 */
        plain = text && !memchr(text, 0, (size_t)size)
            && (key = PyBytes_FromStringAndSize(NULL, size + 3));
        if (!plain)
            break;
        memcpy(PyBytes_AS_STRING(key), text, (size_t)size);
        memcpy(PyBytes_AS_STRING(key) + size, "/I0", 3);
        PyList_SET_ITEM(keys, i, key);
        PyList_SET_ITEM(contents, i, Py_NewRef(PyTuple_GET_ITEM(pair, 1)));
        ((int64_t *)b[0].buf)[i] = size + 3;
        ((int64_t *)b[1].buf)[i] = PyBytes_GET_SIZE(PyTuple_GET_ITEM(pair, 1));
    }
    release(b, 2);
    if (plain)
        return Py_BuildValue("(NN)", keys, contents);
    Py_XDECREF(keys);
    Py_XDECREF(contents);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

typedef struct {
    Bytes at;
    Py_ssize_t size;
} Text;

/* A column of bytes-likes, which stay as long as it does. */
typedef struct {
    PyObject *items;
    Text *texts;
    Py_buffer *held; /* of those that are no bytes objects */
    Py_ssize_t kept;
} Column;

static void column_free(Column *c)
{
    if (c->held)
        release(c->held, c->kept);
    PyMem_Free(c->held);
    PyMem_Free(c->texts);
    Py_XDECREF(c->items);
}

static bool column_of(Column *c, PyObject *given, Py_ssize_t n)
{
    if (!(c->items = PySequence_Tuple(given)))
        return false;
    if (PyTuple_GET_SIZE(c->items) != n) {
        PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        return false;
    }
    if (!(c->texts = PyMem_Calloc((size_t)n + 1, sizeof *c->texts))) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(c->items, i);
        if (PyBytes_CheckExact(item)) {
            c->texts[i] = (Text){(Bytes)PyBytes_AS_STRING(item), PyBytes_GET_SIZE(item)};
            continue;
        }
        if (!c->held && !(c->held = PyMem_Calloc((size_t)n, sizeof *c->held))) {
            PyErr_NoMemory();
            return false;
        }
        if (PyObject_GetBuffer(item, c->held + c->kept, PyBUF_SIMPLE) < 0)
            return false;
        c->texts[i] = (Text){c->held[c->kept].buf, c->held[c->kept].len};
        c->kept++;
    }
    return true;
}

/* Write an entry up to its value -> where that begins. */
static uint8_t *head(uint8_t *p, Bytes key, int64_t key_len, int64_t value_len)
{
    *p = 0;
    put16(p + 1, (uint32_t)key_len);
    memcpy(p + 3, key, (size_t)key_len);
    put32(p + 3 + key_len, (uint32_t)value_len);
    return p + 7 + key_len;
}

typedef struct {
    uint8_t *chunk;
    const int64_t *ends, *fileids, *mtimes, *ftypes;
    int64_t n, isz, pair;
    uint64_t base, contid;
    Column keys, data, attrs; /* attrs: without items where there are none */
} Batch;

static inline void seal(const Batch *b, int64_t at, int64_t end)
{
    uint8_t *p = b->chunk + at;
    uint64_t sum = xxh3(p + 1, (size_t)(end - at - 5), b->contid + b->base + (uint64_t)at);
    put32(b->chunk + end - 4, (uint32_t)sum);
}

/* All entries of the batch -> whether they end where `ends` says, beyond which nothing is written. */
static bool encode_all(const Batch *b)
{
    static const char digits[] = "0123456789abcdef";
    int64_t at = 0, e = 0;
    for (int64_t i = 0; i < b->n; i++) {
        uint8_t own[24], value[240] = {0}; /* "<hex>/D0"; an inode to its last pair */
        int width = 1, pairs = 0;
        uint64_t fileid = (uint64_t)b->fileids[i];
        while (width < 16 && fileid >> (4 * width))
            width++;
        for (int k = 0; k < width; k++)
            own[k] = (uint8_t)digits[fileid >> (4 * (width - 1 - k)) & 15];
        memcpy(own + width, "/D0", 3);
        for (const Column *c = &b->data; c; c = c == &b->data && b->attrs.items ? &b->attrs : NULL) {
            Text text = c->texts[i];
            int64_t end = b->ends[e++];
            if (text.size > UINT32_MAX || end - at != 14 + width + text.size)
                return false;
            own[width + 1] = c == &b->data ? 'D' : 'A';
            memcpy(head(b->chunk + at, own, width + 3, text.size), text.at, (size_t)text.size);
            seal(b, at, end);
            uint8_t *pair = value + 56 + (c == &b->data && b->attrs.items ? b->pair : 0);
            put64(pair, (int64_t)b->base + at);
            put64(pair + b->pair - 8, c == &b->data ? text.size : -text.size);
            pairs++;
            at = end;
        }
        Text key = b->keys.texts[i];
        int64_t end = b->ends[e++], used = 56 + pairs * b->pair;
        if (key.size > 65535 || used > b->isz || end - at != 11 + key.size + b->isz)
            return false;
        put64(value + 16, b->fileids[i]);
        put64(value + 24, b->data.texts[i].size);
        put64(value + 32, b->ftypes[i]);
        put64(value + 40, b->mtimes[i]);
        put64(value + 48, pairs);
        put64(value, (int64_t)xxh3(value + 8, (size_t)used - 8, 0));
        uint8_t *p = head(b->chunk + at, key.at, key.size, b->isz);
        memcpy(p, value, (size_t)used);
        memset(p + used, 0, (size_t)(b->isz - used));
        seal(b, at, end);
        at = end;
    }
    return true;
}

/* encode(base, isz, pairoff, CONTID, ends, fileids, mtimes, ftypes, keys, data, attrs or None)
 *
 * -> bytearray: of each file its data entry, that of its attributes, its inode entry, for the place
 * `base` of a container. ends: int64[2n] or [3n], where each of them ends in it. */
static PyObject *encode(PyObject *module, PyObject *args)
{
    Py_buffer b[4] = {0};
    Batch batch = {0};
    long long base, isz;
    int pairoff;
    unsigned long long contid;
    PyObject *keys, *data, *attrs, *chunk = NULL;
    if (!PyArg_ParseTuple(args, "LLpKy*y*y*y*OOO", &base, &isz, &pairoff, &contid, b, b + 1, b + 2,
                          b + 3, &keys, &data, &attrs))
        goto end;
    Py_ssize_t n = b[1].len / 8, each = attrs == Py_None ? 2 : 3;
    if (isz < 0 || isz > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "files do not end where they should");
        goto end;
    }
    if (lengths_differ(b[0].len, each * n) || lengths_differ(b[1].len, n)
        || lengths_differ(b[2].len, n) || lengths_differ(b[3].len, n)
        || !column_of(&batch.keys, keys, n) || !column_of(&batch.data, data, n)
        || (each == 3 && !column_of(&batch.attrs, attrs, n)))
        goto end;
    const int64_t *ends = b[0].buf;
    int64_t total = n ? ends[each * n - 1] : 0, before = 0;
    int64_t most = n * (64 + 2 * isz); /* bytes of all entries */
    for (Py_ssize_t i = 0; i < n; i++)
        most += batch.keys.texts[i].size + batch.data.texts[i].size
            + (each == 3 ? batch.attrs.texts[i].size : 0);
    if (total > most)
        total = -1;
    for (Py_ssize_t i = 0; i < each * n; i++) {
        if (ends[i] < before || ends[i] > total)
            total = -1;
        before = ends[i];
    }
    if (total < 0 || !(chunk = PyByteArray_FromStringAndSize(NULL, total))) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "files do not end where they should");
        goto end;
    }
    batch.chunk = (uint8_t *)PyByteArray_AS_STRING(chunk);
    batch.ends = ends;
    batch.fileids = b[1].buf;
    batch.mtimes = b[2].buf;
    batch.ftypes = b[3].buf;
    batch.n = n;
    batch.isz = isz;
    batch.pair = pairoff ? 24 : 16;
    batch.base = (uint64_t)base;
    batch.contid = contid;
    bool good;
    Py_BEGIN_ALLOW_THREADS
    good = encode_all(&batch);
    Py_END_ALLOW_THREADS
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "files do not end where they should");
        Py_CLEAR(chunk);
    }
end:
    column_free(&batch.keys);
    column_free(&batch.data);
    column_free(&batch.attrs);
    release(b, 4);
    return chunk;
}

static PyMethodDef functions[] = {
    {"hash_each", hash_each, METH_VARARGS, "XXH3-64 of each buffer"},
    {"hash_at", hash_at, METH_VARARGS, "XXH3-64 of parts of a buffer"},
    {"walk", walk, METH_VARARGS, "where entries begin"},
    {"find_many", find_many, METH_VARARGS, "cells of many hashes"},
    {"inodes", inodes, METH_VARARGS, "where the contents of plain files are"},
    {"contents", contents, METH_VARARGS, "contents of plain files"},
    {"reader", reader, METH_VARARGS, "a reader of single plain files"},
    {"size_of", size_of, METH_VARARGS, "bytes of the contents of files"},
    {"pairs", pairs, METH_VARARGS, "keys and contents of files"},
    {"encode", encode, METH_VARARGS, "the entries of many files"},
    {NULL, NULL, 0, NULL},
};

static int tell_version(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)tell_version}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Fast paths, see native.py", 0, functions,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
