/* The entries of many files that are put together. */
#include "_native.h"

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
FUNCTION(size_of)
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
FUNCTION(pairs)
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
FUNCTION(encode)
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
