/* The entries of many files that are put together. */
#include "_native.h"

#define LARGEST (1 << 20) /* bytes of an inode that is written here */

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

/* The hash of two runs of bytes as if they were one. */
static uint64_t xxh3_two(Bytes head, size_t m, Bytes body, size_t n, uint64_t seed)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    XXH3_64bits_update(&state, head, m);
    XXH3_64bits_update(&state, body, n);
    return XXH3_64bits_digest(&state);
}

typedef struct {
    const int64_t *ends, *fileids, *mtimes, *ftypes;
    int64_t n, isz, pair;
    uint64_t base, contid;
    Column keys, data, attrs; /* attrs: without items where there are none */
    uint8_t *chunk;           /* for all bytes, NULL: for those of `between` */
    uint8_t **between;        /* n + 1 places: for what lies before, between and behind the contents */
} Batch;

static inline void seal(const Batch *b, uint8_t *p, int64_t at, int64_t size)
{
    put32(p + size - 4, (uint32_t)xxh3(p + 1, (size_t)size - 5, b->contid + b->base + (uint64_t)at));
}

/* The data entry of a file, of `size` bytes at p -> where what is behind it goes; NULL: it has not
 * this size. The content stays where it is, if there is no chunk. */
static uint8_t *content(const Batch *b, int64_t i, uint8_t *p, const uint8_t *own, int width,
                        int64_t at, int64_t size)
{
    Text text = b->data.texts[i];
    if (text.size > UINT32_MAX || size != 14 + width + text.size)
        return NULL;
    uint8_t *value = head(p, own, width + 3, text.size);
    if (b->chunk) {
        memcpy(value, text.at, (size_t)text.size);
        seal(b, p, at, size);
        return p + size;
    }
    uint64_t seed = b->contid + b->base + (uint64_t)at;
    p = b->between[i + 1];
    put32(p, (uint32_t)xxh3_two(value - 9 - width, (size_t)width + 9, text.at, (size_t)text.size, seed));
    return p + 4;
}

/* Write the key of a data entry, "<hex>/D0" -> digits of its FILEID. */
static int hex(uint8_t *own, uint64_t fileid)
{
    static const char digits[] = "0123456789abcdef";
    int width = 1;
    while (width < 16 && fileid >> (4 * width))
        width++;
    for (int k = 0; k < width; k++)
        own[k] = (uint8_t)digits[fileid >> (4 * (width - 1 - k)) & 15];
    memcpy(own + width, "/D0", 3);
    return width;
}

/* All entries of the batch -> whether they end where `ends` says, beyond which nothing is written. */
static bool encode_all(const Batch *b)
{
    int64_t at = 0, e = 0;
    uint8_t *p = b->chunk ? b->chunk : b->between[0];
    for (int64_t i = 0; i < b->n; i++) {
        uint8_t own[24], value[240] = {0}; /* "<hex>/D0"; an inode to its last pair */
        uint8_t *pair = value + 56;
        int width = hex(own, (uint64_t)b->fileids[i]);
        int64_t place = at, size = b->ends[e++] - at;
        if (!(p = content(b, i, p, own, width, at, size)))
            return false;
        at += size;
        if (b->attrs.items) {
            Text text = b->attrs.texts[i];
            put64(pair, (int64_t)(b->base + (uint64_t)at));
            put64(pair + b->pair - 8, -text.size);
            pair += b->pair;
            size = b->ends[e++] - at;
            if (text.size > UINT32_MAX || size != 14 + width + text.size)
                return false;
            own[width + 1] = 'A';
            memcpy(head(p, own, width + 3, text.size), text.at, (size_t)text.size);
            seal(b, p, at, size);
            p += size;
            at += size;
        }
        put64(pair, (int64_t)(b->base + (uint64_t)place));
        put64(pair + b->pair - 8, b->data.texts[i].size);
        pair += b->pair;
        Text key = b->keys.texts[i];
        int64_t used = pair - value;
        size = b->ends[e++] - at;
        if (key.size > 65535 || used > b->isz || size != 11 + key.size + b->isz)
            return false;
        put64(value + 16, b->fileids[i]);
        put64(value + 24, b->data.texts[i].size);
        put64(value + 32, b->ftypes[i]);
        put64(value + 40, b->mtimes[i]);
        put64(value + 48, (used - 56) / b->pair);
        put64(value, (int64_t)xxh3(value + 8, (size_t)used - 8, 0));
        uint8_t *inode = head(p, key.at, key.size, b->isz);
        memcpy(inode, value, (size_t)used);
        memset(inode + used, 0, (size_t)(b->isz - used));
        seal(b, p, at, size);
        p += size;
        at += size;
    }
    return true;
}

/* A list of what lies between the contents and, in between, these, whose bytes are not copied.
 * NULL: it cannot be made. */
static PyObject *parts_of(Batch *b, Py_ssize_t each)
{
    PyObject *parts = PyList_New(2 * (Py_ssize_t)b->n + 1);
    b->between = PyMem_Calloc((size_t)b->n + 1, sizeof *b->between);
    int64_t before = 0; /* where the last content ended, without what is behind it */
    for (int64_t i = 0; parts && b->between && i <= b->n; i++) {
        int64_t end = i < b->n ? b->ends[each * i] - 4 : b->n ? b->ends[each * b->n - 1] : 0;
        int64_t content = i < b->n ? b->data.texts[i].size : 0;
        int64_t size = end - before - content; /* and nothing of the file before lies behind it */
        bool room = size >= 0 && (i == 0 || i == b->n || end - content >= b->ends[each * i - 1]);
        PyObject *piece = room ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size) : NULL;
        if (!piece) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "files do not end where they should");
            Py_CLEAR(parts);
            break;
        }
        b->between[i] = (uint8_t *)PyBytes_AS_STRING(piece);
        PyList_SET_ITEM(parts, 2 * i, piece);
        if (i < b->n)
            PyList_SET_ITEM(parts, 2 * i + 1, Py_NewRef(PyTuple_GET_ITEM(b->data.items, i)));
        before = end;
    }
    if (!b->between)
        PyErr_NoMemory();
    return parts;
}

/* encode(base, isz, pairoff, CONTID, ends, fileids, mtimes, ftypes, keys, data, attrs or None, apart)
 *
 * -> [bytearray]: of each file its data entry, that of its attributes, its inode entry, for the place
 * `base` of a container; apart: the same bytes in 2n + 1 parts, of which those of `data`, more than
 * 240 bytes each, are every other one. ends: int64[2n] or [3n], where each of the entries ends. */
FUNCTION(encode)
{
    Py_buffer b[4] = {0};
    Batch batch = {0};
    long long base, isz;
    int pairoff, apart;
    unsigned long long contid;
    PyObject *keys, *data, *attrs, *parts = NULL;
    if (!PyArg_ParseTuple(args, "LLpKy*y*y*y*OOOp", &base, &isz, &pairoff, &contid, b, b + 1, b + 2,
                          b + 3, &keys, &data, &attrs, &apart))
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
    int64_t most = n * (64 + 2 * isz), least = INT64_MAX; /* bytes of all entries; of a content */
    for (Py_ssize_t i = 0; i < n; i++) {
        most += batch.keys.texts[i].size + batch.data.texts[i].size
            + (each == 3 ? batch.attrs.texts[i].size : 0);
        least = batch.data.texts[i].size < least ? batch.data.texts[i].size : least;
    }
    if (total > most || (apart && least <= 240))
        total = -1;
    for (Py_ssize_t i = 0; i < each * n; i++) {
        if (ends[i] < before || ends[i] > total)
            total = -1;
        before = ends[i];
    }
    batch.ends = ends;
    batch.fileids = b[1].buf;
    batch.mtimes = b[2].buf;
    batch.ftypes = b[3].buf;
    batch.n = n;
    batch.isz = isz;
    batch.pair = pairoff ? 24 : 16;
    batch.base = (uint64_t)base;
    batch.contid = contid;
    bool good = total >= 0;
    if (good && apart) {
        parts = parts_of(&batch, each);
    } else if (good && (parts = PyList_New(1))) {
        PyObject *chunk = PyByteArray_FromStringAndSize(NULL, total);
        if (chunk) {
            batch.chunk = (uint8_t *)PyByteArray_AS_STRING(chunk);
            PyList_SET_ITEM(parts, 0, chunk);
        } else
            Py_CLEAR(parts);
    }
    if (parts) {
        Py_BEGIN_ALLOW_THREADS
        good = encode_all(&batch);
        Py_END_ALLOW_THREADS
    }
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "files do not end where they should");
        Py_CLEAR(parts);
    }
end:
    PyMem_Free(batch.between);
    column_free(&batch.keys);
    column_free(&batch.data);
    column_free(&batch.attrs);
    release(b, 4);
    return parts;
}

/* An entry at p, checksum and all -> where the next one goes. */
static uint8_t *entry(uint8_t *p, Bytes key, int64_t key_len, Bytes value, int64_t size, uint64_t seed)
{
    uint8_t *at = head(p, key, key_len, size);
    memcpy(at, value, (size_t)size);
    put32(at + size, (uint32_t)xxh3(p + 1, (size_t)(at + size - p) - 1, seed));
    return at + size + 4;
}

/* entries(pos, least, pairoff, CONTID, FILEID, FMTIME, FTYPE, key, data, word, frame or None)
 *
 * -> the entries of one file for position `pos`, the position of its inode, and the bytes of that,
 * `least` or more: data entry, if it has content, attributes, if there is a word, and inode. */
FUNCTION(entries)
{
    enum { KEY, DATA, WORD, STORED };
    Py_buffer b[4] = {0};
    long long pos, least, fileid, mtime, ftype;
    int pairoff;
    unsigned long long contid;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "LLpKLLLy*y*y*z*", &pos, &least, &pairoff, &contid, &fileid, &mtime,
                          &ftype, b, b + 1, b + 2, b + 3))
        goto end;
    int64_t size = b[DATA].len, word = b[WORD].len, stored = b[STORED].buf ? b[STORED].len : size;
    int64_t pair = pairoff ? 24 : 16, used = 56 + (!!size + !!word) * pair;
    int64_t isz = used < least ? least : used;
    uint8_t own[24], pairs[48] = {0}, *pairs_end = pairs;
    int width = hex(own, (uint64_t)fileid), longest = 14 + width;
    if (b[KEY].len > 65535 || size > UINT32_MAX || word > UINT32_MAX || stored > UINT32_MAX
        || isz > LARGEST || isz % 8) {
        PyErr_SetString(PyExc_ValueError, "too long for an entry");
        goto end;
    }
    int64_t total = 11 + b[KEY].len + isz;
    total += (size ? longest + stored : 0) + (word ? longest + word : 0);
    if (!(found = PyBytes_FromStringAndSize(NULL, total)))
        goto end;
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(found), *p = start;
    if (word) {
        put64(pairs, (int64_t)((uint64_t)pos + (uint64_t)(size ? longest + stored : 0)));
        put64(pairs + pair - 8, -word);
        pairs_end += pair;
    }
    if (size) {
        p = entry(p, own, width + 3, b[STORED].buf ? b[STORED].buf : b[DATA].buf, stored,
                  contid + (uint64_t)pos);
        put64(pairs_end, pos);
        if (b[STORED].buf && pairoff)
            put64(pairs_end + 8, FRAME);
        put64(pairs_end + pair - 8, size);
    }
    if (word) {
        own[width + 1] = 'A';
        p = entry(p, own, width + 3, b[WORD].buf, word, contid + (uint64_t)pos + (uint64_t)(p - start));
    }
    uint64_t place = (uint64_t)pos + (uint64_t)(p - start);
    uint8_t *value = head(p, b[KEY].buf, b[KEY].len, isz);
    memset(value, 0, (size_t)isz);
    put64(value + 16, fileid);
    put64(value + 24, size);
    put64(value + 32, ftype);
    put64(value + 40, mtime);
    put64(value + 48, (used - 56) / pair);
    memcpy(value + 56, pairs, (size_t)(used - 56));
    put64(value, (int64_t)xxh3(value + 8, (size_t)used - 8, 0));
    put32(value + isz, (uint32_t)xxh3(p + 1, (size_t)(value + isz - p) - 1, contid + place));
    found = Py_BuildValue("(NLL)", found, (long long)place, (long long)isz);
end:
    release(b, 4);
    return found;
}
