/* Reading many files and directories of a tree in one call, without the GIL. */
#define _GNU_SOURCE
#include "_native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#define FIELDS 5          /* of a row: bytes of the content or -1, mtime_ns, mode, uid, gid */
#define NANO 1000000000
#define MAX_MTIME 9000000000    /* seconds from the epoch, before or after it */
#define BLOCK 512               /* bytes that st_blocks counts */
#define XATTR_NAMES 4096        /* bytes of the names of extended attributes */
#define DONTCACHE 0x80          /* RWF_DONTCACHE: pages that the read brings in do not stay */
#define SYS_CACHESTAT 451       /* since Linux 6.5 */
#define MAX_LISTED (96 << 10)   /* bytes of a directory that is listed at once, */
#define MAX_NAMES (MAX_LISTED / 24) /* and names in it: each has a record of at least 24 bytes */

typedef struct {
    char *data;
    int64_t used;
    bool dontcache; /* whether the file system knows it, as far as is known */
} Contents;

/* Files that are left to the caller. */
typedef struct {
    bool everything;                     /* whether any extended attribute counts, or only user.* */
    unsigned long long device, inode;    /* of one file */
    long long large, sparse;             /* bytes from which a file is; from which one with holes is */
} Excluded;

/* Return whether a file has extended attributes that count, or may have. */
static bool has_xattrs(int fd, bool everything)
{
    char names[XATTR_NAMES];
    ssize_t n = flistxattr(fd, names, sizeof names);
    if (n < 0)
        return errno != EOPNOTSUPP;
    for (char *at = names; !everything && at < names + n; at += strlen(at) + 1)
        if (!strncmp(at, "user.", 5))
            return true;
    return everything && n > 0;
}

/* Return how many pages of a file the page cache has; -1: unknown. A read with RWF_NOWAIT would start
 * reading them. */
static int64_t resident(int fd)
{
    uint64_t range[2] = {0, 0}, found[5]; /* linux/mman.h: cachestat_range, cachestat */
    return syscall(SYS_CACHESTAT, fd, range, found, 0) == 0 ? (int64_t)found[0] : -1;
}

/* Read `size` bytes -> false if the file is shorter, or if the read could leave pages in the page
 * cache that were not in it. */
static bool fill(int fd, int64_t size, Contents *into)
{
    bool brought = false;
    if (!into->dontcache && size) {
        int64_t there = resident(fd), page = sysconf(_SC_PAGESIZE);
        brought = there == 0;
        if (!brought && there != (size + page - 1) / page)
            return false;
    }
    int64_t got = 0;
    while (got < size) {
        struct iovec to = {into->data + into->used + got, (size_t)(size - got)};
        ssize_t more = preadv2(fd, &to, 1, got, into->dontcache ? DONTCACHE : 0);
        if (more < 0 && into->dontcache && (errno == EOPNOTSUPP || errno == EINVAL)) {
            into->dontcache = false;
            return fill(fd, size, into);
        }
        if (more <= 0)
            break;
        got += more;
    }
    if (brought)
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return got == size;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* Read a file or directory -> its row; row[0] is -1 if it is left to the caller. */
static void take(int directory, const char *name, bool file, const Excluded *excluded,
                 Contents *into, int64_t *row)
{
    struct stat before, after;
    int how = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    int fd = openat(directory, name, how | (file ? 0 : O_DIRECTORY));
    row[0] = -1;
    if (fd < 0)
        return;
    if (fstat(fd, &before) == 0 && (file ? S_ISREG(before.st_mode) : S_ISDIR(before.st_mode))
        && !(before.st_dev == excluded->device && before.st_ino == excluded->inode)
        && before.st_mtim.tv_sec < MAX_MTIME && before.st_mtim.tv_sec > -MAX_MTIME
        && !has_xattrs(fd, excluded->everything)) {
        int64_t size = file ? before.st_size : 0;
        bool whole = size < excluded->sparse || before.st_blocks * BLOCK >= size;
        if (size < excluded->large && whole && fill(fd, size, into)
            && (!file || (fstat(fd, &after) == 0 && after.st_size == size
                          && same_time(after.st_mtim, before.st_mtim)
                          && same_time(after.st_ctim, before.st_ctim)))) {
            row[0] = size;
            row[1] = before.st_mtim.tv_sec * NANO + before.st_mtim.tv_nsec;
            row[2] = before.st_mode;
            row[3] = before.st_uid;
            row[4] = before.st_gid;
            into->used += size;
        }
    }
    close(fd);
}

/* read_files(directories, names, kinds, everything, device, inode, large, sparse, buffer)
 * -> (used, rows) of the first files, as long as the buffer has room for a file of `large` bytes.
 *
 * directories  int64[n]: descriptor of the directory of each name
 * kinds        uint8[n]: 'f' a file, 'd' a directory, others are left to the caller
 * buffer       gets the contents, concatenated: `used` bytes
 * rows         a bytearray, int64[m, FIELDS]. -1 bytes of content: left to the caller, because the
 *              file has extended attributes or holes, is large, has just changed, cannot be read, or
 *              could leave pages in the cache */
FUNCTION(read_files)
{
    Py_buffer b[3] = {0};
    PyObject *names, *found = NULL, *rows = NULL;
    Excluded excluded;
    int everything;
    const char **texts = NULL;
    if (!PyArg_ParseTuple(args, "y*O!y*pKKLLw*", b, &PyList_Type, &names, b + 1, &everything,
                          &excluded.device, &excluded.inode, &excluded.large, &excluded.sparse,
                          b + 2))
        goto end;
    Py_ssize_t n = PyList_GET_SIZE(names), done = 0;
    excluded.everything = everything;
    if (lengths_differ(b[0].len, n) || lengths_differ(8 * b[1].len, n))
        goto end;
    if (excluded.large < 0 || excluded.large > b[2].len) {
        PyErr_SetString(PyExc_ValueError, "the buffer takes no file of `large` bytes");
        goto end;
    }
    texts = PyMem_Calloc((size_t)n + 1, sizeof *texts);
    rows = texts ? PyByteArray_FromStringAndSize(NULL, 8 * FIELDS * n) : PyErr_NoMemory();
    bool good = rows;
    for (Py_ssize_t i = 0; good && i < n; i++)
        good = (texts[i] = PyBytes_AsString(PyList_GET_ITEM(names, i)));
    if (!good)
        goto end;
    const int64_t *directories = b[0].buf;
    Bytes kinds = b[1].buf;
    int64_t *row = (int64_t *)PyByteArray_AS_STRING(rows);
    Contents into = {b[2].buf, 0, true};
    Py_BEGIN_ALLOW_THREADS
    for (; done < n && into.used + excluded.large <= b[2].len; done++, row += FIELDS) {
        row[0] = -1;
        if (kinds[done] == 'f' || kinds[done] == 'd')
            take((int)directories[done], texts[done], kinds[done] == 'f', &excluded, &into, row);
    }
    Py_END_ALLOW_THREADS
    if (PyByteArray_Resize(rows, 8 * FIELDS * done) == 0)
        found = Py_BuildValue("LO", (long long)into.used, rows);
end:
    PyMem_Free(texts);
    release(b, 3);
    Py_XDECREF(rows);
    return found;
}

typedef struct { /* linux_dirent64, see getdents64(2) */
    uint64_t inode;
    int64_t next;
    unsigned short size;
    unsigned char type;
    char name[];
} Record;

static int by_name(const void *a, const void *b)
{
    return strcmp((*(Record *const *)a)->name, (*(Record *const *)b)->name);
}

static char kind_of(unsigned char type)
{
    return type == DT_REG ? 'f' : type == DT_DIR ? 'd' : type == DT_LNK ? 'l' : 'o';
}

/* List an open directory without . and .., sorted -> number of names; -1: it cannot be read, is too
 * large for `raw`, or its file system does not give the types of names. */
static Py_ssize_t list(int directory, char *raw, const Record **found)
{
    Py_ssize_t n = 0;
    long used = 0, got;
    if (lseek(directory, 0, SEEK_SET) < 0)
        return -1;
    while ((got = syscall(SYS_getdents64, directory, raw + used, MAX_LISTED - used)) > 0)
        used += got;
    if (got < 0)
        return -1;
    for (long at = 0; at < used;) {
        const Record *one = (Record *)(raw + at);
        at += one->size;
        if (!strcmp(one->name, ".") || !strcmp(one->name, ".."))
            continue;
        if (one->type == DT_UNKNOWN)
            return -1;
        found[n++] = one;
    }
    qsort(found, (size_t)n, sizeof *found, by_name);
    return n;
}

/* names_in(directory) -> the names in an open directory in byte order, each followed by NUL and its
 * kind: f a file, d a directory, l a link, o another; None: list it in Python. */
FUNCTION(names_in)
{
    int directory;
    if (!PyArg_ParseTuple(args, "i", &directory))
        return NULL;
    char *raw = malloc(MAX_LISTED);
    const Record **found = malloc(MAX_NAMES * sizeof *found);
    Py_ssize_t n = -1;
    Py_BEGIN_ALLOW_THREADS
    if (raw && found)
        n = list(directory, raw, found);
    Py_END_ALLOW_THREADS
    PyObject *names = n < 0 ? Py_NewRef(Py_None) : PyList_New(n);
    if (n < 0)
        lseek(directory, 0, SEEK_SET); /* the caller lists it from the position of the descriptor */
    for (Py_ssize_t i = 0; names && i < n; i++) {
        size_t size = strlen(found[i]->name);
        PyObject *one = PyBytes_FromStringAndSize(found[i]->name, (Py_ssize_t)size + 2);
        if (!one) {
            Py_CLEAR(names);
            break;
        }
        PyBytes_AS_STRING(one)[size] = 0;
        PyBytes_AS_STRING(one)[size + 1] = kind_of(found[i]->type);
        PyList_SET_ITEM(names, i, one);
    }
    free(raw);
    free(found);
    return names;
}
