/* Verified reads of plain files: those whose inode has one extent, the whole value of an entry. */
#include "_native.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#define PLAIN 2048   /* bytes of the largest inode entry that is read here */
#define SMALL 8192   /* bytes of a content that is checked on the stack */
#define ALIKE 64     /* cells that the search for one file passes */

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
    if (pos <= 0 || size < 0 || f->limit - pos < 11 || f->limit - pos - 11 < size
        || f->data[pos]) /* marked deleted: the ordinary way decides */
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
FUNCTION(inodes)
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
        bring(f.data, f.limit, pos[i], isz);
    for (Py_ssize_t i = 0; good && i < n; i++) {
        if (i + AHEAD < n)
            bring(f.data, f.limit, pos[i + AHEAD], isz);
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
FUNCTION(contents)
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
            bring(f.data, f.limit, pos[i + AHEAD], sizes[i + AHEAD]);
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
    Bytes first;
    int64_t count, free, deleted;
} Cells;

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
    bool plain = PyUnicode_CheckExact(given); /* asked first: it takes no call */
    if (!plain && PyBytes_Check(given)) {
        *key = (Bytes)PyBytes_AS_STRING(given);
        return PyBytes_GET_SIZE(given);
    }
    const char *name = plain || PyUnicode_Check(given) ? PyUnicode_AsUTF8AndSize(given, &n) : NULL;
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
    for (Py_ssize_t i = 0, n = PyTuple_GET_SIZE(r->doubts); i < n; i++) {
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
FUNCTION(reader)
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
