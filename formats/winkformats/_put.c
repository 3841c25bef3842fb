/* Encoding the entries of many files that are put at once. */
#include "_native.h"

#define MAX_INODE (1 << 20)  /* bytes of an inode that is written here */
#define ALWAYS_COPIED 240    /* bytes of a content up to which it is copied */

/* Return the pair of name and content at an index of a list, NULL: it is something else. */
static PyObject *pair_at(PyObject *files, Py_ssize_t i)
{
    PyObject *pair = PyList_GET_ITEM(files, i);
    return PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2
            && PyBytes_CheckExact(PyTuple_GET_ITEM(pair, 1))
        ? pair : NULL;
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
            PyErr_Clear(); /* for a str that is not UTF-8 */
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

/* A column of bytes-like objects, which it keeps alive. */
typedef struct {
    PyObject *items;
    Text *texts;
    Py_buffer *held; /* buffers of those that are no bytes objects */
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

/* Write an entry up to its value -> start of the value. */
static uint8_t *head(uint8_t *p, Bytes key, int64_t key_len, int64_t value_len)
{
    *p = 0;
    put16(p + 1, (uint32_t)key_len);
    memcpy(p + 3, key, (size_t)key_len);
    put32(p + 3 + key_len, (uint32_t)value_len);
    return p + 7 + key_len;
}

/* Write a whole entry at p, with its checksum -> its end. */
static uint8_t *entry(uint8_t *p, Bytes key, int64_t key_len, Text value, uint64_t seed)
{
    uint8_t *at = head(p, key, key_len, value.size);
    memcpy(at, value.at, (size_t)value.size);
    put32(at + value.size, (uint32_t)xxh3(p + 1, (size_t)(at + value.size - p) - 1, seed));
    return at + value.size + 4;
}

/* Return the number of hex digits of a FILEID. */
static int digits_of(uint64_t fileid)
{
    int width = 1;
    while (width < 16 && fileid >> (4 * width))
        width++;
    return width;
}

/* Write the key of a data entry, "<hex>/D0" -> its bytes. */
static int data_key(uint8_t *own, uint64_t fileid)
{
    static const char digits[] = "0123456789abcdef";
    int width = digits_of(fileid);
    for (int k = 0; k < width; k++)
        own[k] = (uint8_t)digits[fileid >> (4 * (width - 1 - k)) & 15];
    memcpy(own + width, "/D0", 3);
    return width + 3;
}

/* A file to write. data: its content as it is stored; length: bytes of the content; least: smallest
 * size of an inode, a multiple of 8; pair: bytes of an extent in it. */
typedef struct {
    Text key, data, word;
    int64_t length, least, pair, fileid, mtime, ftype;
    bool framed;
} File;

/* Return the bytes of the entries of a file, and those before its content; -1: they are too long. */
static int64_t size_of_file(const File *f, int64_t *isz, int64_t *before)
{
    int64_t beside = 14 + digits_of((uint64_t)f->fileid);
    int64_t used = 56 + (!!f->data.size + !!f->word.size) * f->pair;
    *isz = used < f->least ? f->least : used;
    *before = beside - 4;
    if (f->key.size > 65535 || f->data.size > UINT32_MAX || f->word.size > UINT32_MAX
        || *isz > MAX_INODE || *isz % 8)
        return -1;
    return 11 + f->key.size + *isz + (f->data.size ? beside + f->data.size : 0)
        + (f->word.size ? beside + f->word.size : 0);
}

/* Write the entries of a file for position `*pos`, from p on -> their end; `*pos` becomes that of the
 * inode. after: place for the bytes after its content, which is not copied; NULL: it is copied. */
static uint8_t *write_file(const File *f, uint8_t *p, uint8_t *after, uint64_t contid, uint64_t *pos)
{
    uint8_t own[24], pairs[48] = {0}, *next = pairs;
    int64_t isz, before;
    int key_len = data_key(own, (uint64_t)f->fileid);
    int64_t size = size_of_file(f, &isz, &before);
    uint64_t at = *pos, inode = at + (uint64_t)(size - 11 - f->key.size - isz);
    if (f->word.size) {
        put64(next, (int64_t)(inode - (uint64_t)(before + f->word.size + 4)));
        put64(next + f->pair - 8, -f->word.size);
        next += f->pair;
    }
    if (f->data.size) {
        put64(next, (int64_t)at);
        if (f->framed && f->pair == 24)
            put64(next + 8, FRAME);
        put64(next + f->pair - 8, f->length);
        next += f->pair;
        if (after) {
            uint8_t *value = head(p, own, key_len, f->data.size);
            put32(after, (uint32_t)xxh3_two(p + 1, (size_t)(value - p) - 1, f->data.at,
                                            (size_t)f->data.size, contid + at));
            p = after + 4;
        } else
            p = entry(p, own, key_len, f->data, contid + at);
        at += (uint64_t)(before + f->data.size + 4);
    }
    if (f->word.size) {
        own[key_len - 2] = 'A';
        p = entry(p, own, key_len, f->word, contid + at);
    }
    uint8_t *value = head(p, f->key.at, f->key.size, isz);
    memset(value, 0, (size_t)isz);
    put64(value + 16, f->fileid);
    put64(value + 24, f->length);
    put64(value + 32, f->ftype);
    put64(value + 40, f->mtime);
    put64(value + 48, (next - pairs) / f->pair);
    memcpy(value + 56, pairs, (size_t)(next - pairs));
    put64(value, (int64_t)xxh3(value + 8, (size_t)(next - pairs) + 48, 0));
    put32(value + isz, (uint32_t)xxh3(p + 1, (size_t)(value + isz - p) - 1, contid + inode));
    *pos = inode;
    return value + isz + 4;
}

typedef struct {
    Column keys, data, words; /* words: without items if there are none */
    const int64_t *fileids, *mtimes, *ftypes, *lengths;
    Bytes framed; /* NULL: no content is a frame */
    int64_t n, least, pair;
    uint64_t base, contid;
    bool apart;
    uint8_t **pieces; /* buffers for the bytes around contents that are not copied */
    int64_t *positions, *firsts;
} Batch;

static File file_at(const Batch *b, int64_t i)
{
    return (File){
        .key = b->keys.texts[i], .data = b->data.texts[i],
        .word = b->words.items ? b->words.texts[i] : (Text){NULL, 0}, .length = b->lengths[i],
        .least = b->least, .pair = b->pair, .mtime = b->mtimes[i], .ftype = b->ftypes[i],
        .fileid = b->fileids[i], .framed = b->framed && b->framed[i],
    };
}

/* Return whether the content of a file is not copied; a short one always is. */
static bool is_apart(const Batch *b, int64_t i)
{
    return b->apart && b->data.texts[i].size > ALWAYS_COPIED;
}

static void encode_all(const Batch *b)
{
    uint8_t **piece = b->pieces, *p = *piece;
    uint64_t pos = b->base;
    for (int64_t i = 0; i < b->n; i++) {
        File f = file_at(b, i);
        int64_t isz, before;
        b->firsts[i] = (int64_t)pos;
        p = write_file(&f, p, is_apart(b, i) ? *++piece : NULL, b->contid, &pos);
        b->positions[i] = (int64_t)pos;
        (void)size_of_file(&f, &isz, &before);
        pos += (uint64_t)(11 + f.key.size + isz);
    }
}

static bool add_piece(Batch *b, PyObject *parts, Py_ssize_t number, int64_t size)
{
    PyObject *piece = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!piece || PyList_Append(parts, piece) < 0) {
        Py_XDECREF(piece);
        return false;
    }
    b->pieces[number] = (uint8_t *)PyBytes_AS_STRING(piece);
    Py_DECREF(piece);
    return true;
}

/* Return a list of the buffers for the entries and, in between, the contents that are not copied.
 * NULL: an error is set. */
static PyObject *parts_of(Batch *b)
{
    PyObject *parts = PyList_New(0);
    Py_ssize_t number = 0;
    int64_t size = 0;
    b->pieces = PyMem_Calloc((size_t)b->n + 1, sizeof *b->pieces);
    if (!parts || !b->pieces)
        goto failed;
    for (int64_t i = 0; i < b->n; i++) {
        File f = file_at(b, i);
        int64_t isz, before, all = size_of_file(&f, &isz, &before);
        if (all < 0) {
            PyErr_SetString(PyExc_ValueError, "too long for an entry");
            goto failed;
        }
        if (!is_apart(b, i)) {
            size += all;
            continue;
        }
        if (!add_piece(b, parts, number++, size + before)
            || PyList_Append(parts, PyTuple_GET_ITEM(b->data.items, (Py_ssize_t)i)) < 0)
            goto failed;
        size = all - before - f.data.size;
    }
    if (add_piece(b, parts, number, size))
        return parts;
failed:
    if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(parts);
    return NULL;
}

/* encode(base, least, pairoff, CONTID, fileids, mtimes, ftypes, lengths, keys, data, words or None,
 *        framed or None, apart, positions, firsts)
 *
 * -> [bytes]: for each file its data entry, if it has content, that of its attributes, if its word is
 * not empty, and its inode entry, for position `base` of a container.
 * apart: contents of more than ALWAYS_COPIED bytes are parts of their own. positions and firsts,
 * int64[n], get the positions of the inodes and of the first entry of each file. */
FUNCTION(encode)
{
    Py_buffer b[7] = {0};
    Batch batch = {0};
    long long least;
    int pairoff, apart;
    unsigned long long base, contid;
    PyObject *keys, *data, *words, *parts = NULL;
    if (!PyArg_ParseTuple(args, "KLpKy*y*y*y*OOOz*pw*w*", &base, &least, &pairoff, &contid, b, b + 1,
                          b + 2, b + 3, &keys, &data, &words, b + 4, &apart, b + 5, b + 6))
        goto end;
    Py_ssize_t n = b[0].len / 8;
    if (lengths_differ(b[0].len, n) || lengths_differ(b[1].len, n) || lengths_differ(b[2].len, n)
        || lengths_differ(b[3].len, n) || lengths_differ(b[5].len, n)
        || lengths_differ(b[6].len, n) || (b[4].buf && lengths_differ(8 * b[4].len, n))
        || !column_of(&batch.keys, keys, n) || !column_of(&batch.data, data, n)
        || (words != Py_None && !column_of(&batch.words, words, n)))
        goto end;
    batch.fileids = b[0].buf;
    batch.mtimes = b[1].buf;
    batch.ftypes = b[2].buf;
    batch.lengths = b[3].buf;
    batch.framed = b[4].buf;
    batch.positions = b[5].buf;
    batch.firsts = b[6].buf;
    batch.n = n;
    batch.least = least;
    batch.pair = pairoff ? 24 : 16;
    batch.base = base;
    batch.contid = contid;
    batch.apart = apart;
    if ((parts = parts_of(&batch))) {
        Py_BEGIN_ALLOW_THREADS
        encode_all(&batch);
        Py_END_ALLOW_THREADS
    }
end:
    PyMem_Free(batch.pieces);
    column_free(&batch.keys);
    column_free(&batch.data);
    column_free(&batch.words);
    release(b, 7);
    return parts;
}

/* entries(pos, least, pairoff, CONTID, FILEID, FMTIME, FTYPE, key, data, word, length, framed)
 *
 * length: bytes of the content; framed: `data` is a frame of it
 * -> the entries of one file, the position of its inode, and the bytes of that. */
FUNCTION(entries)
{
    enum { KEY, DATA, WORD };
    Py_buffer b[3] = {0};
    long long least, fileid, mtime, ftype, length;
    int pairoff, framed;
    unsigned long long pos, contid;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "KLpKLLLy*y*y*Lp", &pos, &least, &pairoff, &contid, &fileid, &mtime,
                          &ftype, b, b + 1, b + 2, &length, &framed))
        goto end;
    File f = {
        .key = {b[KEY].buf, b[KEY].len}, .data = {b[DATA].buf, b[DATA].len},
        .word = {b[WORD].buf, b[WORD].len}, .length = length, .least = least,
        .pair = pairoff ? 24 : 16, .fileid = fileid, .mtime = mtime, .ftype = ftype,
        .framed = framed,
    };
    int64_t isz, before, size = size_of_file(&f, &isz, &before);
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "too long for an entry");
        goto end;
    }
    uint64_t at = pos;
    if (!(found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size)))
        goto end;
    write_file(&f, (uint8_t *)PyBytes_AS_STRING(found), NULL, contid, &at);
    found = Py_BuildValue("(NLL)", found, (long long)at, (long long)isz);
end:
    release(b, 3);
    return found;
}
