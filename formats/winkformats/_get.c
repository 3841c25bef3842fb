/* Verified reads of files whose inodes and entries have the usual layout. */
#include "_native.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_INODE 2048     /* bytes of the largest inode entry that is read here, and of a key */
#define STACK_ENTRY 8192   /* bytes of an entry that is checked on the stack */
#define MAX_BEFORE 8192    /* most bytes before an inode that are read with it */
#define ENTRY_HEAD 64      /* bytes of an entry that contain all before its value */
#define MAX_PROBED 64      /* cells that the search for one file reads */
#define PAGE 4096          /* bytes of the index with one checksum */
#define MAX_EXTENTS 16     /* extents of a file that is read here */
#define MAX_HOLES (1 << 20)     /* bytes of a content that may be larger than the container */
#define USUAL_INODE 512    /* bytes of an inode entry that is decoded with many others */
#define COLUMNS 8          /* of FileTable, table.py, as the three below */
#define EMPTY 0
#define BY_INODE (-1)
#define SPECIAL (1 << 9)

typedef struct {
    Bytes data;               /* a mapping */
    int fd;                   /* for reads instead of the mapping, if `few` */
    bool few;
    int64_t limit, isz, pair; /* bytes: of the file, of a usual inode, of a pair or triple */
    uint64_t contid;
} File;

/* A range [low, high) of a file that was read at once. */
typedef struct {
    int64_t low, high;
    uint8_t bytes[MAX_BEFORE + MAX_INODE];
} Near;

/* Read from a file -> bytes. It may wait for the disk. */
static int64_t read_at(int fd, void *into, int64_t size, int64_t pos)
{
    int64_t got;
    Py_BEGIN_ALLOW_THREADS
    got = pread(fd, into, (size_t)size, pos);
    Py_END_ALLOW_THREADS
    return got;
}

/* Copy `size` bytes at `pos`, which end below the limit -> whether the file has them. The copy is
 * checked and returned, because a mapping may change meanwhile. */
static bool take(const File *f, const Near *near, int64_t pos, int64_t size, uint8_t *into)
{
    if (near && near->low <= pos && size <= near->high - pos)
        memcpy(into, near->bytes + (pos - near->low), (size_t)size);
    else if (!f->few)
        memcpy(into, f->data + pos, (size_t)size);
    else
        return read_at(f->fd, into, size, pos) == size;
    return true;
}

/* Copy the `size` bytes at `pos`, and the checksum behind them -> whether the file has them. */
static bool take_both(const File *f, int64_t pos, int64_t size, uint8_t *into, uint8_t *checksum)
{
    if (!f->few) {
        memcpy(into, f->data + pos, (size_t)size);
        memcpy(checksum, f->data + pos + size, 4);
        return true;
    }
    struct iovec parts[] = {{into, (size_t)size}, {checksum, 4}};
    int64_t got;
    Py_BEGIN_ALLOW_THREADS
    got = preadv(f->fd, parts, 2, pos);
    Py_END_ALLOW_THREADS
    return got == size + 4;
}

/* --- inodes and values of entries --- */

typedef struct {
    int64_t fileid, lsize, ftype, mtime;
    int64_t word, word_size; /* position and bytes of the attributes; no bytes: there are none */
    int64_t count;           /* of extents */
    Bytes pairs, name;
    int64_t name_len;
} Inode;

typedef struct {
    int64_t pointer, skip, size;
} Extent;

static Extent extent(const File *f, Bytes pair)
{
    return (Extent){be64(pair), f->pair == 16 ? 0 : be64(pair + 8), be64(pair + f->pair - 8)};
}

/* Return whether the entry at `pos`, of which `size` bytes are copied, is a live, intact inode with
 * this key (NULL: with any key), whose extents cover the whole file. */
static bool inode_of(const File *f, Bytes copy, int64_t size, int64_t pos, Bytes key,
                     int64_t key_len, Inode *found)
{
    if (size < 3 || copy[0] || (key && key_len != once16(copy + 1)))
        return false;
    key_len = once16(copy + 1);
    if (key_len < 4 || size < 67 + key_len || memcmp(copy + key_len, "/I0", 3)
        || (key && memcmp(copy + 3, key, (size_t)key_len)))
        return false;
    Bytes value = copy + 7 + key_len;
    int64_t isz = once32(value - 4), width = 11 + key_len + isz, total = 0;
    if (isz < 56 || width > size
        || (uint32_t)xxh3(copy + 1, (size_t)width - 5, f->contid + (uint64_t)pos)
            != once32(copy + width - 4))
        return false;
    *found = (Inode){be64(value + 16), be64(value + 24), be64(value + 32), be64(value + 40), 0, 0,
                     be64(value + 48), value + 56, copy + 3, key_len - 3};
    if (found->count < 0 || found->count > (isz - 56) / f->pair || found->fileid < 1
        || found->lsize < 0 || be64(value + 8)
        || (uint64_t)be64(value) != xxh3(value + 8, (size_t)(48 + found->count * f->pair), 0))
        return false;
    Extent first = found->count ? extent(f, found->pairs) : (Extent){0};
    if (first.size < 0) {
        found->word = first.pointer;
        found->word_size = -(first.size + 1); /* plus one below, because -INT64_MIN overflows */
        if (found->word <= 0 || ++found->word_size > UINT32_MAX)
            return false;
        found->pairs += f->pair;
        found->count--;
    }
    for (int64_t i = 0, end; i < found->count; i++) {
        Extent e = extent(f, found->pairs + i * f->pair);
        if (e.pointer < 0 || e.skip < 0 || e.size < 0 || __builtin_add_overflow(e.skip, e.size, &end)
            || __builtin_add_overflow(total, e.size, &total))
            return false;
    }
    return total >= found->lsize;
}

/* A checked value: `size` bytes at `at`, in a copy of its entry. */
typedef struct {
    Bytes at;
    int64_t size;
    uint8_t *copy, small[STACK_ENTRY];
} Value;

static void value_free(Value *v)
{
    if (v->copy != v->small)
        PyMem_Free(v->copy);
}

/* Read and check the value of the live entry at `pos` -> whether it is intact; if not, an error may be
 * set. In any case `value_free` must be called. */
static bool value_of(const File *f, const Near *near, int64_t pos, Value *v)
{
    uint8_t room[ENTRY_HEAD];
    Bytes head = room;
    v->copy = v->small;
    if (pos <= 0 || pos > f->limit - 11)
        return false;
    int64_t left = f->limit - pos, size = left < ENTRY_HEAD ? left : ENTRY_HEAD;
    if (!f->few)
        head = f->data + pos;
    else if (!take(f, near, pos, size, room))
        return false;
    int64_t start = 7 + (int64_t)once16(head + 1);
    if (head[0] || start > size) /* marked deleted: left to the ordinary way */
        return false;
    v->size = once32(head + start - 4);
    int64_t width = start + v->size + 4;
    if (width > left)
        return false;
    if (width > STACK_ENTRY && !(v->copy = PyMem_Malloc((size_t)width))) {
        v->copy = v->small;
        PyErr_NoMemory();
        return false;
    }
    v->at = v->copy + start;
    return take(f, near, pos, width, v->copy) && once16(v->copy + 1) + 7 == start
        && once32(v->at - 4) == v->size
        && (uint32_t)xxh3(v->copy + 1, (size_t)width - 5, f->contid + (uint64_t)pos)
            == once32(v->copy + width - 4);
}

/* Copy the value, of `size` bytes, of the live entry at `pos`, and check the copy -> whether it is intact,
 * and of this size. A large value is copied once, a small one is cheaper with all of its entry. */
static bool value_into(const File *f, const Near *near, int64_t pos, int64_t size, uint8_t *into)
{
    uint8_t head[ENTRY_HEAD], end[4];
    if (size < STACK_ENTRY) {
        Value v;
        bool good = value_of(f, near, pos, &v) && v.size == size;
        if (good)
            memcpy(into, v.at, (size_t)size);
        value_free(&v);
        return good;
    }
    if (pos <= 0 || pos > f->limit - size || !take(f, near, pos, ENTRY_HEAD, head))
        return false;
    int64_t start = 7 + (int64_t)once16(head + 1);
    return !head[0] && start <= ENTRY_HEAD && once32(head + start - 4) == size
        && start + size + 4 <= f->limit - pos && take_both(f, pos + start, size, into, end)
        && (uint32_t)xxh3_two(head + 1, (size_t)start - 1, into, (size_t)size, f->contid + (uint64_t)pos)
            == once32(end);
}

/* --- many plain files, whose inodes have one extent, the whole value of an entry --- */

static bool file_of(File *f, const Py_buffer *view, long long limit, long long isz, int pairoff,
                    unsigned long long contid)
{
    *f = (File){view->buf, -1, false, limit, isz, pairoff ? 24 : 16, contid};
    if (limit >= 0 && limit <= view->len && isz >= 56 + f->pair && isz <= MAX_INODE)
        return true;
    PyErr_SetString(PyExc_ValueError, "no such file or inode");
    return false;
}

/* Return position and bytes of the content of the file with its inode entry at `pos` -> whether the
 * file is plain and its inode intact. */
static bool plain_inode(const File *f, int64_t pos, Bytes key, int64_t key_len, int64_t *pointer,
                        int64_t *size)
{
    uint8_t copy[MAX_INODE];
    Inode inode;
    int64_t width = 11 + key_len + f->isz;
    if (pos <= 0 || width > MAX_INODE || f->limit - pos < width)
        return false;
    take(f, NULL, pos, width, copy);
    if (!inode_of(f, copy, width, pos, key, key_len, &inode) || inode.count != 1)
        return false;
    Extent e = extent(f, inode.pairs);
    *pointer = e.pointer;
    *size = e.size;
    return e.pointer > 0 && e.skip == 0 && e.size == inode.lsize;
}

/* inodes(data, limit, isz, pairoff, CONTID, keys, pos, pointers, sizes): position and bytes of the
 * contents of the files with these keys, whose inodes are probably at `pos`. pointers[i] 0: no plain
 * file, or damaged. */
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

/* Return the value of the entry at `pos`, of `size` bytes; NULL without an error: it has a different
 * size, or is damaged. */
static PyObject *content(const File *f, int64_t pos, int64_t size)
{
    if (size < 0 || size > f->limit)
        return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, size);
    if (found && !value_into(f, NULL, pos, size, (uint8_t *)PyBytes_AS_STRING(found)))
        Py_CLEAR(found);
    return found;
}

/* contents(data, limit, isz, pairoff, CONTID, pointers, sizes, found): sets found[i] to the content of
 * the file with these results of `inodes`; unchanged if it cannot be read. */
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

/* Whether the entry at `at` of `limit` bytes is intact, not marked deleted, and has a value of `size`
 * bytes, at *value. */
static bool same_entry(Bytes data, int64_t limit, int64_t at, int64_t size, uint64_t seed, Bytes *value)
{
    if (at < 0 || at > limit - 11 || data[at])
        return false;
    int64_t start = 7 + ((int64_t)data[at + 1] << 8 | data[at + 2]);
    if (size > limit - at - start - 4)
        return false;
    *value = data + at + start;
    return once32(*value - 4) == size
        && (uint32_t)xxh3(data + at + 1, (size_t)(start - 1 + size), seed) == once32(*value + size);
}

/* gather(data, at, pos, sizes, CONTID, into, good): copies the values, of `sizes` bytes, of the entries
 * at offsets `at` of `data`, which were at `pos` in a file, one behind the other, and sets good[i] to 1;
 * 0: an entry is damaged, or another one, and there is a gap for it. Nothing else may change `data`. */
FUNCTION(gather)
{
    Py_buffer b[6] = {0};
    unsigned long long contid;
    bool good = PyArg_ParseTuple(args, "y*y*y*y*Kw*w*", b, b + 1, b + 2, b + 3, &contid, b + 4, b + 5);
    Py_ssize_t n = b[1].len / 8;
    good = good && !lengths_differ(b[1].len, n) && !lengths_differ(b[2].len, n)
        && !lengths_differ(b[3].len, n) && !lengths_differ(8 * b[5].len, n);
    const int64_t *at = b[1].buf, *pos = b[2].buf, *sizes = b[3].buf;
    uint8_t *into = b[4].buf, *marks = b[5].buf;
    int64_t left = b[4].len;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        int64_t size = sizes[i];
        Bytes value;
        if (size < 0 || size > left) {
            PyErr_SetString(PyExc_ValueError, "no room for the values");
            good = false;
        } else {
            marks[i] = same_entry(b[0].buf, b[0].len, at[i], size, contid + (uint64_t)pos[i], &value);
            if (marks[i])
                memcpy(into, value, (size_t)size);
            into += size;
            left -= size;
        }
    }
    release(b, 6);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}

/* --- files by the positions of their inodes --- */

/* Return a name as str; as bytes if it is no UTF-8, or has a backslash, which may have to be escaped. */
static PyObject *text_of(Bytes name, int64_t size)
{
    PyObject *found = NULL;
    if (!memchr(name, '\\', (size_t)size) && !(found = PyUnicode_FromStringAndSize((const char *)name, size)))
        PyErr_Clear();
    return found ? found : PyBytes_FromStringAndSize((const char *)name, size);
}

/* Return where in the data an entry is that was at `pointer` in its file, before the inode at `pos`,
 * which is at `at` now; at most 0: nowhere. */
static int64_t place_of(int64_t pointer, int64_t at, int64_t pos)
{
    return 0 < pointer && pointer <= pos ? at - (pos - pointer) : 0;
}

/* Read the content of a plain file whose inode is at `at`, and was at `pos` in its file -> NULL without
 * an error: it is not plain, or damaged. */
static PyObject *plain_content(const File *f, const Inode *inode, int64_t at, int64_t pos)
{
    if (!inode->lsize)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (inode->count != 1)
        return NULL;
    Extent e = extent(f, inode->pairs);
    int64_t start = place_of(e.pointer, at, pos);
    return start > 0 && !e.skip && e.size == inode->lsize ? content(f, start, e.size) : NULL;
}

/* Set the row i of the lists of `files` -> whether no error is set. */
static bool put_row(const File *f, int64_t at, int64_t pos, PyObject **lists, Py_ssize_t i,
                    int64_t *size, int64_t *mtime)
{
    Inode inode;
    PyObject *found[3] = {NULL};
    uint8_t copy[MAX_INODE];
    if (at < 0 || f->limit - at < 7)
        return true;
    int64_t left = f->limit - at, key_len = once16(f->data + at + 1);
    if (left < 7 + key_len)
        return true;
    int64_t width = 11 + key_len + once32(f->data + at + 3 + key_len);
    if (width > MAX_INODE || width > left)
        return true;
    memcpy(copy, f->data + at, (size_t)width); /* the mapping may change meanwhile */
    if (!inode_of(f, copy, width, at, NULL, 0, &inode))
        return true;
    if (lists[1] && !(found[1] = plain_content(f, &inode, at, pos)))
        return !PyErr_Occurred();
    if (lists[2] && inode.word_size) {
        Value v;
        int64_t start = place_of(inode.word, at, pos);
        if (start > 0 && value_of(f, NULL, start, &v)) {
            if (inode.word_size <= v.size)
                found[2] = PyBytes_FromStringAndSize((const char *)v.at, inode.word_size);
            value_free(&v);
        }
        if (!found[2]) {
            Py_XDECREF(found[1]);
            return !PyErr_Occurred();
        }
    }
    if (!(found[0] = text_of(inode.name, inode.name_len))) {
        Py_XDECREF(found[1]);
        Py_XDECREF(found[2]);
        return false;
    }
    *size = inode.lsize;
    *mtime = inode.mtime;
    bool good = true;
    for (int k = 2; k >= 0; k--)
        if (found[k] && PyList_SetItem(lists[k], i, found[k]) != 0) /* an IndexError of a shorter list */
            good = false;
    return good;
}

/* files(data, limit, isz, pairoff, CONTID, at, pos, names, contents, words, sizes, mtimes): reads the
 * files with inodes at offsets `at` of `data`, which were at `pos` in a file. Sets names[i] (see
 * `text_of`), contents[i] and words[i], the stored bytes of attributes; contents, words None: these are
 * not read. All stay as they are if one of them cannot be read. */
FUNCTION(files)
{
    Py_buffer b[5] = {0};
    long long limit, isz;
    int pairoff;
    unsigned long long contid;
    PyObject *lists[3];
    File f;
    bool good = PyArg_ParseTuple(args, "y*LLpKy*y*O!OOw*w*", b, &limit, &isz, &pairoff, &contid, b + 1,
                                 b + 2, &PyList_Type, lists, lists + 1, lists + 2, b + 3, b + 4);
    Py_ssize_t n = b[1].len / 8;
    for (int k = 1; good && k < 5; k++)
        good = !lengths_differ(b[k].len, n);
    good = good && file_of(&f, b, limit, isz, pairoff, contid);
    for (int k = 1; good && k < 3; k++) {
        if (lists[k] == Py_None)
            lists[k] = NULL;
        else if (!PyList_Check(lists[k])) {
            PyErr_SetString(PyExc_TypeError, "contents and words are lists");
            good = false;
        }
    }
    const int64_t *at = b[1].buf, *pos = b[2].buf;
    int64_t *sizes = b[3].buf, *mtimes = b[4].buf;
    for (Py_ssize_t i = 0; good && i < n; i++) {
        if (i + AHEAD < n)
            bring(f.data, f.limit, at[i + AHEAD], isz);
        f.contid = contid + ((uint64_t)pos[i] - (uint64_t)at[i]); /* entries are checked by where they were */
        good = put_row(&f, at[i], pos[i], lists, i, sizes + i, mtimes + i);
    }
    release(b, 5);
    if (!good)
        return NULL;
    Py_RETURN_NONE;
}

/* Return the bytes that the entry of a content, whose key is "<FILEID in hex>/D0", has beside it. */
static int64_t around_content(int64_t fileid)
{
    int64_t digits = 1;
    while (fileid >>= 4)
        digits++;
    return 14 + digits;
}

/* Decode an inode into a row of n, see FileTable -> whether it is ordinary: its content, if it has one
 * extent, ends where the next entry of the file begins, and no field needs a second look. */
static bool row_of(const File *f, const Inode *inode, int64_t pos, int64_t unit, int64_t *row,
                   int64_t *attrs, Py_ssize_t n)
{
    int64_t pointer = inode->lsize ? BY_INODE : EMPTY, mtime;
    if (inode->ftype < 0 || inode->ftype > 255 || !inode->name[inode->name_len - 1]
        || __builtin_mul_overflow(inode->mtime, unit, &mtime))
        return false;
    if (inode->count == 1 && inode->lsize) {
        Extent e = extent(f, inode->pairs);
        int64_t follows = inode->word_size ? inode->word : pos, beside = around_content(inode->fileid);
        if (e.skip == 0 && e.size == inode->lsize && e.pointer > 0) {
            if (follows - beside - e.size != e.pointer)
                return false;
            pointer = e.pointer;
        }
    }
    int64_t kind = (inode->ftype ? inode->ftype : 'f') | (inode->word_size ? SPECIAL : 0);
    int64_t columns[] = {pos, inode->fileid, inode->lsize, mtime, pointer, mtime, kind, 0};
    for (int i = 0; i < COLUMNS; i++)
        row[i * n] = columns[i];
    attrs[0] = inode->word;
    attrs[1] = inode->word_size;
    return true;
}

/* table(data, at, pos, pairoff, CONTID, unit, numbers, attrs, ends) -> the names, concatenated; None:
 * one of the inodes at offsets `at` of `data`, which were at `pos` in a file, is not ordinary.
 *
 * unit     nanoseconds of an FMTIME
 * numbers  int64[COLUMNS, n], attrs int64[n, 2], ends int64[n + 1]: get the rest; see `Decoded` */
FUNCTION(table)
{
    Py_buffer b[6] = {0};
    int pairoff;
    unsigned long long contid;
    long long unit;
    PyObject *names = NULL;
    uint8_t copy[MAX_INODE];
    bool good = PyArg_ParseTuple(args, "y*y*y*pKLw*w*w*", b, b + 1, b + 2, &pairoff, &contid, &unit,
                                 b + 3, b + 4, b + 5);
    Py_ssize_t n = b[1].len / 8, used = 0, room = 64 * n + MAX_INODE;
    good = good && !lengths_differ(b[1].len, n) && !lengths_differ(b[2].len, n)
        && !lengths_differ(b[3].len, COLUMNS * n) && !lengths_differ(b[4].len, 2 * n)
        && !lengths_differ(b[5].len, n + 1);
    if (good)
        names = PyByteArray_FromStringAndSize(NULL, room);
    File f = {b[0].buf, -1, false, b[0].len, 0, pairoff ? 24 : 16, contid};
    const int64_t *at = b[1].buf, *pos = b[2].buf;
    int64_t *numbers = b[3].buf, *attrs = b[4].buf, *ends = b[5].buf;
    if (names)
        ends[0] = 0;
    for (Py_ssize_t i = 0; names && good && i < n; i++) {
        Inode inode;
        int64_t size = at[i] < 0 || at[i] > f.limit ? 0 : f.limit - at[i];
        if (i + AHEAD < n)
            bring(f.data, f.limit, at[i + AHEAD], USUAL_INODE);
        size = size < USUAL_INODE ? size : USUAL_INODE;
        take(&f, NULL, size ? at[i] : 0, size, copy);
        good = inode_of(&f, copy, size, pos[i], NULL, 0, &inode)
            && row_of(&f, &inode, pos[i], unit, numbers + i, attrs + 2 * i, n);
        if (!good)
            break;
        if (used + MAX_INODE > room && PyByteArray_Resize(names, room *= 2) < 0)
            Py_CLEAR(names);
        else {
            memcpy(PyByteArray_AS_STRING(names) + used, inode.name, (size_t)inode.name_len);
            ends[i + 1] = used += inode.name_len;
        }
    }
    if (names && (!good || PyByteArray_Resize(names, used) < 0))
        Py_CLEAR(names);
    release(b, 6);
    return names || PyErr_Occurred() ? names : Py_NewRef(Py_None);
}

/* --- one file --- */

typedef struct {
    Py_buffer data, table, limits, sums;
    PyObject *overlay, *drafts, *doubts, *decode;
    int files[2]; /* own descriptors of data file and index; -1: in memory */
    File file;
    int64_t first, count, free, deleted; /* of the table: its offset, HTSIZE, HTFREE, HTDEL */
    int64_t before, filesize_at;         /* filesize_at < 0: no other process writes */
    uint64_t filesize, due;              /* in the byte order of the file; nanoseconds */
} Reader;

/* Result of a look-up: an error is set, use the ordinary way, there is no such file, or its inode. */
typedef enum { FAILED, ASK, NONE, FOUND } Answer;

typedef struct {
    bool content; /* whether the content is read, too */
    int64_t pos;  /* of the inode */
    File file;
    Bytes key;
    Py_ssize_t key_len;
    Inode inode;
    Near near;
    char room[MAX_INODE];
} Look;

static void reader_free(PyObject *capsule)
{
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    PyBuffer_Release(&r->data);
    PyBuffer_Release(&r->table);
    PyBuffer_Release(&r->limits);
    PyBuffer_Release(&r->sums);
    Py_XDECREF(r->overlay);
    Py_XDECREF(r->drafts);
    Py_XDECREF(r->doubts);
    Py_XDECREF(r->decode);
    for (int i = 0; i < 2; i++)
        if (r->files[i] >= 0)
            close(r->files[i]);
    PyMem_Free(r);
}

/* Return whether a file still has at least so many bytes: reading past its end would kill the process.
 * lseek is faster than fstat, and the offset of the descriptor is not used. */
static bool still_has(int file, int64_t bytes)
{
    return file < 0 || lseek(file, 0, SEEK_END) >= bytes;
}

/* Write the key of a name, str or bytes, to `room` -> its bytes, -1: no name, or too long. */
static Py_ssize_t key_of(PyObject *given, char *room)
{
    Py_ssize_t n = -1;
    const char *name = NULL;
    if (PyUnicode_CheckExact(given)) /* first, because it takes no call */
        name = PyUnicode_AsUTF8AndSize(given, &n);
    else if (PyBytes_CheckExact(given)) {
        name = PyBytes_AS_STRING(given);
        n = PyBytes_GET_SIZE(given);
    }
    if (!name || n < 1 || n > MAX_INODE - 3 || memchr(name, 0, (size_t)n)) {
        PyErr_Clear(); /* for a str that is not UTF-8 */
        return -1;
    }
    memcpy(room, name, (size_t)n);
    memcpy(room + n, "/I0", 3);
    return n + 3;
}

/* Return FOUND if nothing has changed since the reader was made; ASK: it may have. */
static Answer sure(const Reader *r)
{
    for (Py_ssize_t i = 0, n = PyTuple_GET_SIZE(r->doubts); i < n; i++) {
        Py_ssize_t some = PyObject_Size(PyTuple_GET_ITEM(r->doubts, i));
        if (some)
            return some < 0 ? FAILED : ASK;
    }
    return FOUND;
}

/* Return whether the pages of these cells have been checked. */
static bool proven(const Reader *r, int64_t low, int64_t high)
{
    if (!r->sums.buf)
        return true;
    int64_t last = (r->first + 16 * high + 15) / PAGE;
    for (int64_t page = (r->first + 16 * low) / PAGE; page <= last; page++)
        if (page >= r->sums.len || !((Bytes)r->sums.buf)[page])
            return false;
    return true;
}

/* Look up the position of a key in the table -> NONE: it certainly has none. */
static Answer position(const Reader *r, bool few, uint64_t s, int64_t *pos)
{
    uint8_t room[16 * MAX_PROBED];
    if (!r->count)
        return ASK;
    int64_t home = (int64_t)((s & INT64_MAX) % (uint64_t)r->count), left = r->count - home;
    Bytes cells = room;
    left = left < MAX_PROBED ? left : MAX_PROBED;
    if (few && r->files[1] >= 0) {
        if (read_at(r->files[1], room, 16 * left, r->first + 16 * home) != 16 * left)
            return ASK;
    } else if (r->count > (r->table.len - r->first) / 16)
        return ASK;
    else
        cells = (Bytes)r->table.buf + r->first + 16 * home;
    for (int64_t i = 0; i < left; i++) {
        *pos = be64(cells + 16 * i);
        if (*pos == r->free)
            return proven(r, home, home + i) ? NONE : ASK;
        if ((uint64_t)be64(cells + 16 * i + 8) == s && *pos != r->deleted)
            return FOUND;
    }
    return ASK;
}

/* Look up a key in overlay and drafts, which are dicts -> NONE: they do not have it. */
static Answer known(const Reader *r, const Look *l, int64_t *pos)
{
    if (!PyDict_GET_SIZE(r->overlay) && !PyDict_GET_SIZE(r->drafts))
        return NONE;
    PyObject *own = PyBytes_FromStringAndSize((const char *)l->key, l->key_len), *found = NULL;
    int drafted = own ? PyDict_Contains(r->drafts, own) : -1;
    if (drafted == 0 && (found = PyDict_GetItemWithError(r->overlay, own)))
        *pos = PyLong_AsLongLong(found);
    Py_XDECREF(own);
    return PyErr_Occurred() ? FAILED : drafted ? ASK : found ? FOUND : NONE;
}

/* Return whether another process has written since the reader was made, or may have replaced the
 * file. */
static bool is_late(const Reader *r, const File *f)
{
    struct timespec now;
    uint64_t filesize;
    if (r->filesize_at < 0)
        return false;
    if (!f->few && r->filesize_at > r->data.len - 8)
        return true;
    if (!f->few)
        filesize = le64(f->data + r->filesize_at);
    else if (read_at(f->fd, &filesize, 8, r->filesize_at) != 8)
        return true;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return filesize != r->filesize
        || (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec > r->due;
}

/* Copy and check the entry of an inode with this key, or with any, at `pos`. */
static Answer inode_at(const Reader *r, Look *l, int64_t pos)
{
    const File *f = &l->file;
    Near *near = &l->near;
    int64_t size = f->limit - pos;
    if (pos <= 0 || size < 67 + l->key_len)
        return ASK;
    if (f->few) {
        near->low = pos > r->before ? pos - r->before : 0;
        size = read_at(f->fd, near->bytes,
                       pos - near->low + (size < MAX_INODE ? size : MAX_INODE), near->low);
    } else {
        int64_t most = size < MAX_INODE ? size : MAX_INODE, usual = 11 + l->key_len + f->isz;
        if (l->content) /* it is usually right before the inode: wait for both at once */
            bring(f->data, f->limit, pos - r->before, r->before);
        size = l->key && usual < most ? usual : most; /* without waiting for the length */
        if (size + 64 <= most) /* in lines, which is faster than a copy of variable size */
            for (int64_t i = 0; i < size; i += 64)
                memcpy(near->bytes + i, f->data + pos + i, 64);
        else
            memcpy(near->bytes, f->data + pos, (size_t)size);
        if (once32(near->bytes + 3 + l->key_len) > f->isz)
            memcpy(near->bytes, f->data + pos, (size_t)(size = most));
        near->low = pos;
    }
    near->high = near->low + size;
    int64_t at = pos - near->low;
    return inode_of(f, near->bytes + at, size - at, pos, l->key, l->key_len, &l->inode) ? FOUND : ASK;
}

/* Find the inode of a name, or with NULL the one at `pos`. */
static Answer look(Reader *r, PyObject *name, int64_t pos, bool content, Look *l)
{
    int64_t *limits = r->limits.buf;
    File *f = &l->file;
    *f = r->file;
    l->content = content;
    l->near.low = l->near.high = 0;
    l->key = name ? (Bytes)l->room : NULL;
    l->key_len = name ? key_of(name, l->room) : 0;
    Answer answer = l->key_len < 0 ? ASK : sure(r);
    if (answer != FOUND)
        return answer;
    f->few = f->fd >= 0 && limits[1] > 0;
    f->limit = !f->few && limits[0] > r->data.len ? r->data.len : limits[0];
    if (f->few)
        limits[1]--;
    else if (!still_has(f->fd, f->limit)
             || !still_has(r->files[1], r->first + 16 * r->count))
        return ASK;
    if (is_late(r, f))
        return ASK;
    if (name)
        answer = known(r, l, &pos);
    if (answer == NONE)
        answer = position(r, f->few, xxh3(l->key, (size_t)l->key_len, 0), &pos);
    if (answer == FOUND)
        answer = pos || !name ? inode_at(r, l, pos) : NONE; /* 0: a tombstone */
    l->pos = pos;
    if (f->few && answer > ASK && sure(r) != FOUND) /* other threads ran during the read */
        answer = ASK;
    return answer;
}

/* Return the answer if there is no inode. */
static PyObject *without(Answer answer)
{
    return answer == FAILED ? NULL : Py_NewRef(answer == ASK ? Py_None : Py_False);
}

/* Return None for a value that could not be read, unless an error is set. */
static PyObject *bad(void)
{
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Copy an extent -> whether it is intact; if not, an error may be set. */
static bool copy_extent(const Reader *r, const Look *l, Extent e, char *into)
{
    if (!e.skip && e.size >= STACK_ENTRY
        && value_into(&l->file, &l->near, e.pointer, e.size, (uint8_t *)into))
        return true;
    Value v;
    bool good = value_of(&l->file, &l->near, e.pointer, &v);
    if (good && e.skip >= FRAME) {
        PyObject *whole = PyObject_CallFunction(r->decode, "y#L", v.at, (Py_ssize_t)v.size,
                                                (long long)e.pointer);
        good = whole && PyBytes_Check(whole) && e.skip - FRAME <= PyBytes_GET_SIZE(whole) - e.size;
        if (good)
            memcpy(into, PyBytes_AS_STRING(whole) + (e.skip - FRAME), (size_t)e.size);
        else if (!whole && PyErr_ExceptionMatches(PyExc_Exception))
            PyErr_Clear(); /* damaged, or closed meanwhile */
        Py_XDECREF(whole);
    } else if ((good = good && e.skip + e.size <= v.size))
        memcpy(into, v.at + e.skip, (size_t)e.size);
    value_free(&v);
    return good;
}

/* Read a file by its name or, `by_pos`, by the position of its inode: see `reader_read`. */
static PyObject *read_one(PyObject *capsule, PyObject *const *args, Py_ssize_t count, bool by_pos)
{
    Look l;
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    if (!r || count < 1 || count > 2) {
        PyErr_SetString(PyExc_TypeError, "read(name, most), read_at(pos, most)");
        return NULL;
    }
    int64_t most = count == 2 ? PyLong_AsLongLong(args[1]) : INT64_MAX;
    int64_t pos = by_pos && !PyErr_Occurred() ? PyLong_AsLongLong(args[0]) : 0;
    if (PyErr_Occurred())
        return NULL;
    Answer answer = look(r, by_pos ? NULL : args[0], pos, true, &l);
    if (answer != FOUND)
        return without(answer);
    int64_t left = l.inode.lsize;
    if (left > most || l.inode.count > MAX_EXTENTS || (left > MAX_HOLES && left > l.file.limit))
        Py_RETURN_NONE;
    PyObject *found = PyBytes_FromStringAndSize(NULL, left);
    char *into = found ? PyBytes_AS_STRING(found) : NULL;
    for (int64_t i = 0; found && left; i++) {
        Extent e = extent(&l.file, l.inode.pairs + i * l.file.pair);
        e.size = e.size < left ? e.size : left;
        if (!e.pointer)
            memset(into, 0, (size_t)e.size);
        else if (!copy_extent(r, &l, e, into))
            Py_CLEAR(found);
        into += e.size;
        left -= e.size;
    }
    return found ? found : bad();
}

/* read(name, most) -> the content of a file of at most `most` bytes; False: there is no file of that
 * name; None: use the ordinary way. */
static PyObject *reader_read(PyObject *capsule, PyObject *const *args, Py_ssize_t count)
{
    return read_one(capsule, args, count, false);
}

/* read_at(pos, most) -> the content of the file with its inode at `pos`, or None. */
static PyObject *reader_read_at(PyObject *capsule, PyObject *const *args, Py_ssize_t count)
{
    return read_one(capsule, args, count, true);
}

/* has(name) -> whether there is a file of that name; None: see `reader_read`. */
static PyObject *reader_has(PyObject *capsule, PyObject *name)
{
    Look l;
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    Answer answer = r ? look(r, name, 0, false, &l) : FAILED;
    return answer == FOUND ? Py_NewRef(Py_True) : without(answer);
}

/* Return the fields of an inode: FILEID, LSIZE, FTYPE, FMTIME, the bytes of the attributes (None: it
 * has none), their position, the position of the inode; None: use the ordinary way. */
static PyObject *facts_of(const Look *l)
{
    Value v;
    const Inode *i = &l->inode;
    PyObject *word = i->word_size ? NULL : Py_NewRef(Py_None);
    if (!word) {
        if (value_of(&l->file, &l->near, i->word, &v) && i->word_size <= v.size)
            word = PyBytes_FromStringAndSize((const char *)v.at, i->word_size);
        value_free(&v);
        if (!word)
            return bad();
    }
    return Py_BuildValue("LLLLNLL", (long long)i->fileid, (long long)i->lsize, (long long)i->ftype,
                         (long long)i->mtime, word, (long long)i->word, (long long)l->pos);
}

/* find(name) -> see `facts_of`; False: see `reader_read`. */
static PyObject *reader_find(PyObject *capsule, PyObject *name)
{
    Look l;
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    Answer answer = r ? look(r, name, 0, false, &l) : FAILED;
    return answer == FOUND ? facts_of(&l) : without(answer);
}

/* find_at(pos) -> the name of the file with its inode at `pos`, and `facts_of` it; or None. */
static PyObject *reader_find_at(PyObject *capsule, PyObject *given)
{
    Look l;
    Reader *r = PyCapsule_GetPointer(capsule, "reader");
    int64_t pos = PyLong_AsLongLong(given);
    Answer answer = r && !PyErr_Occurred() ? look(r, NULL, pos, false, &l) : FAILED;
    if (answer != FOUND)
        return without(answer);
    PyObject *found = facts_of(&l);
    if (!found || found == Py_None)
        return found;
    return Py_BuildValue("y#N", (const char *)l.inode.name, (Py_ssize_t)l.inode.name_len, found);
}

static PyMethodDef asked[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, "the content of a file"},
    {"has", reader_has, METH_O, "whether there is a file"},
    {"find", reader_find, METH_O, "the fields of an inode"},
    {"read_at", (PyCFunction)(void (*)(void))reader_read_at, METH_FASTCALL,
     "the content of a file, by the position of its inode"},
    {"find_at", reader_find_at, METH_O, "name and facts of a file, by the position of its inode"},
};

/* reader(data, limits, isz, pairoff, CONTID, table, first, HTSIZE, HTFREE, HTDEL, sums or None,
 *        overlay, drafts, doubts, data_fd, table_fd, before, filesize_at, filesize, due, decode)
 * -> (read, has, find, read_at, find_at)
 *
 * data    empty: all is read by pread
 * table   empty: all is read by pread; HTSIZE 0: there is none
 * limits  int64[2], changed by the caller: bytes of the data file that may be accessed, and number of
 *         files that are read from it by pread
 * sums    for each page of the index, whether it has been checked; None: all have
 * doubts  collections: while one is not empty, all is left to the ordinary way
 * decode  decompresses a frame
 * The descriptors are duplicated; -1: there is none. */
FUNCTION(reader)
{
    long long isz, first, count, free_mark, deleted, before, filesize_at;
    int pairoff, fds[2];
    unsigned long long contid, filesize, due;
    Reader *r = PyMem_Calloc(1, sizeof *r);
    if (!r)
        return PyErr_NoMemory();
    r->files[0] = r->files[1] = -1;
    PyObject *overlay, *drafts, *doubts, *decode, *found = NULL;
    PyObject *capsule = PyCapsule_New(r, "reader", reader_free);
    if (!capsule) {
        PyMem_Free(r);
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "y*w*LpKy*LLLLz*O!O!O!iiLLKKO", &r->data, &r->limits, &isz, &pairoff, &contid,
                          &r->table, &first, &count, &free_mark, &deleted, &r->sums, &PyDict_Type,
                          &overlay, &PyDict_Type, &drafts, &PyTuple_Type, &doubts, fds, fds + 1,
                          &before, &filesize_at, &filesize, &due, &decode))
        goto end;
    const int64_t *limits = r->limits.buf;
    if (r->limits.len != 16 || limits[0] < 0 || isz < 56 || isz > MAX_INODE || first < 0
        || count < 0 || count > (INT64_MAX - first) / 16 || before < 0 || before > MAX_BEFORE) {
        PyErr_SetString(PyExc_ValueError, "no such file or table");
        goto end;
    }
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0 && (r->files[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0)) < 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            goto end;
        }
    r->file = (File){r->data.buf, r->files[0], false, 0, isz, pairoff ? 24 : 16, contid};
    r->overlay = Py_NewRef(overlay);
    r->drafts = Py_NewRef(drafts);
    r->doubts = Py_NewRef(doubts);
    r->decode = Py_NewRef(decode);
    r->first = first;
    r->count = count;
    r->free = free_mark;
    r->deleted = deleted;
    r->before = before;
    r->filesize_at = filesize_at;
    r->filesize = filesize;
    r->due = due;
    found = Py_BuildValue("(NNNNN)", PyCFunction_New(asked, capsule), PyCFunction_New(asked + 1, capsule),
                          PyCFunction_New(asked + 2, capsule), PyCFunction_New(asked + 3, capsule),
                          PyCFunction_New(asked + 4, capsule));
end:
    Py_DECREF(capsule);
    return found;
}
