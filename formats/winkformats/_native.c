/* Optional fast paths for the standard layout of new containers; `native.py` chooses the path.
 *
 * Each function returns exactly what its reference in Python returns. Unusual input is left to the
 * reference, by a return value of its own. A length, offset or count from a file is checked against
 * the end of its buffer before it is used, and read only once, because the buffer may be a mapping
 * that another process changes. Arrays are contiguous, of int64 or uint64.
 */
#define _GNU_SOURCE /* memrchr */
#include "_native.h"

#define VERSION 22         /* changes with each change of a function: see native.py */
#define WALK_AHEAD 4096    /* bytes that the walk over entries prefetches */
#define MAX_PROBED 4096    /* cells that a search reads before it gives up */
#define MAX_LITERALS 8     /* texts that a line has to have */

/* --- hashes --- */

/* hash_each(buffers, seeds or None) -> bytearray of uint64[n], n the length of the shorter one. */
static PyObject *hash_each(PyObject *module, PyObject *args)
{
    PyObject *given, *source = NULL, *item, *found = NULL;
    Py_buffer seeds = {0};
    if (!PyArg_ParseTuple(args, "Oz*", &given, &seeds) || !(source = PyObject_GetIter(given)))
        goto end;
    Py_ssize_t n = 0, room = seeds.buf ? seeds.len / 8 : 1024;
    found = PyByteArray_FromStringAndSize(NULL, 8 * room);
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

/* Return the bytes of the entry at data[at:limit], 0: it is incomplete. */
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

/* walk(data) -> (bytearray of int64[n, 3]: offset of each complete entry, bytes of its key and of its
 * value; offset of the end of the last one) */
static PyObject *walk(PyObject *module, PyObject *args)
{
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*", &data))
        return NULL;
    int64_t at = 0, size, n = 0, room = data.len / 256 + 64, seen = 0;
    PyObject *found = PyByteArray_FromStringAndSize(NULL, 24 * room);
    while (found && (size = entry_size(data.buf, data.len, at))) {
        if (n == room && PyByteArray_Resize(found, 24 * (room *= 2)) < 0) {
            Py_CLEAR(found);
            break;
        }
        int64_t *row = (int64_t *)PyByteArray_AS_STRING(found) + 3 * n++;
        row[0] = at;
        row[1] = once16((Bytes)data.buf + at + 1);
        row[2] = size - 11 - row[1];
        at += size;
        /* The offset of a length follows from the one before, so that each read waits for memory. */
        for (seen = seen < at ? at : seen; seen < at + WALK_AHEAD && seen < data.len; seen += LINE)
            __builtin_prefetch((Bytes)data.buf + seen);
    }
    PyBuffer_Release(&data);
    if (!found || PyByteArray_Resize(found, 24 * n) < 0) {
        Py_XDECREF(found);
        return NULL;
    }
    return Py_BuildValue("(NL)", found, (long long)at);
}

/* --- cells of two words --- */

/* find_many(cells, HTSIZE, HTFREE, HTDEL, s, bits, pointers, slots) -> number of undecided rows, whose
 * slot is HTSIZE. The others are those of `table.find_many`. */
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
            int64_t slot = slots[i], most = count < MAX_PROBED ? count : MAX_PROBED, pointer = 0;
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

/* --- lines --- */

#define BLOCK 64 /* bytes that are searched together, by vector instructions */

/* A text that is searched: `one` and `two` are the places of its two rarest bytes; `folded`: its
 * letters, in lower case, are found in any case. */
typedef struct {
    Bytes text;
    size_t size, one, two;
    bool folded;
} Literal;

/* Return the bit by which the upper case of a letter differs; 0: it is found only as it is. */
static inline uint8_t case_bit(const Literal *literal, size_t i)
{
    return literal->folded && 'a' <= literal->text[i] && literal->text[i] <= 'z' ? 0x20 : 0;
}

/* Return how common a byte is in texts, 0: rare. */
static size_t commonness(uint8_t byte)
{
    const char *common = "/.,-_gbhfumpdclrsniaote ", *found = byte ? strchr(common, byte) : NULL;
    return found ? (size_t)(found - common) + 1 : 0;
}

static Literal literal_of(Bytes text, size_t size, bool folded)
{
    Literal found = {text, size, 0, size - 1, folded};
    for (size_t i = 0; i < size; i++)
        if (commonness(text[i]) < commonness(text[found.one]))
            found.one = i;
    found.two = found.one ? 0 : size - 1;
    for (size_t i = 0; i < size; i++)
        if (i != found.one && commonness(text[i]) < commonness(text[found.two]))
            found.two = i;
    return found;
}

static bool begins(Bytes at, const Literal *literal)
{
    for (size_t i = 0; i < literal->size; i++)
        if ((at[i] | case_bit(literal, i)) != literal->text[i])
            return false;
    return true;
}

/* Return where a text begins in [at, stop); NULL: nowhere. */
static Bytes find(Bytes at, Bytes stop, const Literal *literal)
{
    uint8_t one = literal->text[literal->one], two = literal->text[literal->two];
    uint8_t bit_one = case_bit(literal, literal->one), bit_two = case_bit(literal, literal->two);
    for (int64_t left; (left = stop - at - (int64_t)literal->size + 1) > 0; at += BLOCK) {
        Bytes ones = at + literal->one, twos = at + literal->two;
        uint8_t both[BLOCK] = {0}, any = 0;
        if (left >= BLOCK)
            for (int i = 0; i < BLOCK; i++)
                any |= both[i] = ((ones[i] | bit_one) == one) & ((twos[i] | bit_two) == two);
        else
            for (int i = 0; i < left; i++)
                any |= both[i] = ((ones[i] | bit_one) == one) & ((twos[i] | bit_two) == two);
        for (int i = 0; any && i < BLOCK; i += 8)
            for (uint64_t word = le64(both + i); word; word &= word - 1) {
                Bytes hit = at + i + __builtin_ctzll(word) / 8;
                if (begins(hit, literal))
                    return hit;
            }
    }
    return NULL;
}

/* lines(data, literals, folded) -> bytearray of int64[n, 2]: start, and end without the line feed, of
 * each line that has all texts of a tuple, of which the first should be rare; folded: they are in lower
 * case, and found in any case of ASCII letters. */
static PyObject *lines(PyObject *module, PyObject *args)
{
    Py_buffer b = {0};
    PyObject *given, *found = NULL;
    Literal literals[MAX_LITERALS];
    int folded;
    if (!PyArg_ParseTuple(args, "y*O!p", &b, &PyTuple_Type, &given, &folded))
        goto end;
    Py_ssize_t count = PyTuple_Size(given), size, n = 0, room = 256;
    for (Py_ssize_t i = 0; i < count && i < MAX_LITERALS; i++) {
        char *text;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(given, i), &text, &size) < 0)
            goto end;
        if (!size || memchr(text, '\n', (size_t)size))
            count = 0;
        else
            literals[i] = literal_of((Bytes)text, (size_t)size, folded);
    }
    if (count < 1 || count > MAX_LITERALS) {
        PyErr_SetString(PyExc_ValueError, "few literals, that have bytes, and no line feed");
        goto end;
    }
    Bytes data = b.buf, at = data, stop = data + b.len, hit;
    found = PyByteArray_FromStringAndSize(NULL, 16 * room);
    while (found && (hit = find(at, stop, literals))) {
        Bytes before = memrchr(at, '\n', (size_t)(hit - at)), start = before ? before + 1 : at;
        Bytes next = hit + literals->size, last = memchr(next, '\n', (size_t)(stop - next));
        Bytes end = last ? last : stop;
        at = last ? last + 1 : stop;
        bool all = true;
        for (Py_ssize_t i = 1; all && i < count; i++)
            all = find(start, end, literals + i);
        if (!all)
            continue;
        if (n == room && PyByteArray_Resize(found, 16 * (room *= 4)) < 0) {
            Py_CLEAR(found);
            break;
        }
        int64_t *row = (int64_t *)PyByteArray_AS_STRING(found) + 2 * n++;
        row[0] = start - data;
        row[1] = end - data;
    }
    if (found && PyByteArray_Resize(found, 16 * n) < 0)
        Py_CLEAR(found);
end:
    PyBuffer_Release(&b);
    return found;
}

/* Write the decimal digits of a number, at most 20 -> their end. */
static char *put_number(char *into, int64_t number)
{
    char digits[20], *first = digits + 20;
    do
        *--first = (char)('0' + number % 10);
    while (number /= 10);
    memcpy(into, first, (size_t)(digits + 20 - first));
    return into + (digits + 20 - first);
}

/* headed(data, lines int64[n, 2], of int64[n], heads, starts int64[len(heads)] or None) -> bytearray:
 * each line data[lines[i, 0] : lines[i, 1]] with a line feed, behind heads[of[i]]; starts: of the contents
 * whose heads they are, in order; the number of the line in its content, and a colon, precede it. */
static PyObject *headed(PyObject *module, PyObject *args)
{
    Py_buffer b[4] = {0};
    PyObject *heads, *found = NULL;
    if (!PyArg_ParseTuple(args, "y*y*y*O!z*", b, b + 1, b + 2, &PyList_Type, &heads, b + 3))
        goto end;
    Bytes data = b[0].buf;
    const int64_t *spans = b[1].buf, *of = b[2].buf, *starts = b[3].buf;
    int64_t n = b[2].len / 8, total = 0, head = -1, number = 0, at = 0;
    if (lengths_differ(b[1].len / 2, n) || (starts && lengths_differ(b[3].len, PyList_Size(heads))))
        goto end;
    for (int64_t i = 0; i < n; i++) {
        PyObject *text = of[i] < 0 ? NULL : PyList_GetItem(heads, of[i]);
        int64_t first = starts && text ? starts[of[i]] : 0;
        if (!text || !PyBytes_Check(text) || first < 0 || spans[2 * i] < first
            || spans[2 * i + 1] < spans[2 * i] || b[0].len < spans[2 * i + 1]
            || (starts && i && of[i] == of[i - 1] && spans[2 * i] < spans[2 * i - 2])) {
            PyErr_SetString(PyExc_ValueError, "a line is outside of its content");
            goto end;
        }
        total += PyBytes_GET_SIZE(text) + spans[2 * i + 1] - spans[2 * i] + (starts ? 22 : 1);
    }
    if (!(found = PyByteArray_FromStringAndSize(NULL, total)))
        goto end;
    char *begin = PyByteArray_AS_STRING(found), *into = begin;
    for (int64_t i = 0; i < n; i++) {
        PyObject *text = PyList_GetItem(heads, of[i]);
        int64_t start = spans[2 * i], size = spans[2 * i + 1] - start;
        memcpy(into, PyBytes_AS_STRING(text), (size_t)PyBytes_GET_SIZE(text));
        into += PyBytes_GET_SIZE(text);
        if (starts) {
            if (of[i] != head)
                number = 1, at = starts[head = of[i]];
            for (; at < start; at++)
                number += data[at] == '\n';
            into = put_number(into, number);
            *into++ = ':';
        }
        memcpy(into, data + start, (size_t)size);
        into += size;
        *into++ = '\n';
    }
    if (PyByteArray_Resize(found, into - begin) < 0)
        Py_CLEAR(found);
end:
    release(b, 4);
    return found;
}

static PyMethodDef functions[] = {
    {"hash_each", hash_each, METH_VARARGS, "XXH3-64 of each buffer"},
    {"hash_at", hash_at, METH_VARARGS, "XXH3-64 of parts of a buffer"},
    {"walk", walk, METH_VARARGS, "where entries begin"},
    {"lines", lines, METH_VARARGS, "lines that have literals"},
    {"headed", headed, METH_VARARGS, "lines behind their heads"},
    {"find_many", find_many, METH_VARARGS, "cells of many hashes"},
    {"blocks", blocks, METH_VARARGS, "rows of blocks of a catalog"},
    {"paths", paths, METH_VARARGS, "slashes in names, and what these share"},
    {"inodes", inodes, METH_VARARGS, "where the contents of plain files are"},
    {"contents", contents, METH_VARARGS, "contents of plain files"},
    {"gather", gather, METH_VARARGS, "values of entries, one behind the other"},
    {"files", files, METH_VARARGS, "plain files, by the positions of their inodes"},
    {"table", table, METH_VARARGS, "rows of the inodes of many files"},
    {"reader", reader, METH_VARARGS, "a reader of single plain files"},
    {"read_files", read_files, METH_VARARGS, "files and directories of a tree"},
    {"names_in", names_in, METH_VARARGS, "the names in a directory"},
    {"pairs", pairs, METH_VARARGS, "keys and contents of files"},
    {"encode", encode, METH_VARARGS, "the entries of many files"},
    {"entries", entries, METH_VARARGS, "the entries of one file"},
    {NULL, NULL, 0, NULL},
};

static int add_version(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)add_version}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Fast paths, see native.py", 0, functions,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
