/* Makes one kind of system call fail: calls `first` to `last` of those that concern paths with a given text in them.
 *
 *     cc -shared -fPIC -O1 -o injector.so injector.c -ldl
 *     LD_PRELOAD=./injector.so python ...
 *
 * The program arms it by faults_arm(), and asks faults_calls() and faults_hits() for the number of such calls, and of
 * those that failed. Kinds are numbered as in errnos.py.
 *
 * From faults_note() on, calls that change such paths are noted in a file, for power.py: a line of tabs for each with
 * the call, two numbers and two paths, and the bytes that were written.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FSYNC, CLOSE, MMAP, POPULATE, STAT, SCANDIR, RENAME, UNLINK, MKDIR, LINK, READLINK, FLOCK, NONE };

static _Atomic int armed = NONE;
static int code;
static long first, last;
static char where[256];
static _Atomic long calls, hits;
static _Atomic int notes = -1;

void faults_arm(int kind, int code_, long first_, long last_, const char *where_) {
    armed = NONE;
    code = code_;
    first = first_;
    last = last_;
    calls = hits = 0;
    snprintf(where, sizeof where, "%s", where_);
    armed = kind;
}
void faults_disarm(void) { armed = NONE; }
long faults_calls(void) { return calls; }
long faults_hits(void) { return hits; }

void faults_note(int fd, const char *where_) {
    snprintf(where, sizeof where, "%s", where_);
    notes = fd;
}

static int by_path(const char *path) { return path && strstr(path, where) != NULL; }
static int by_fd(int fd) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return by_path(path);
}
static int by_at(int fd, const char *path) { return by_path(path) || (path && path[0] != '/' && fd >= 0 && by_fd(fd)); }
static int strikes(void) {
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (number < first || number > last) return 0;
    hits++;
    errno = code;
    return 1;
}

/* The whole path of a name in a folder that is open, or of what is open itself if there is no name. */
static const char *whole(char *out, int fd, const char *name) {
    char link[64];
    if (name && (name[0] == '/' || fd < 0)) return name;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, link, out, 4000);
    snprintf(out + (length < 0 ? 0 : length), 4096, name ? "/%s" : "", name);
    return out;
}
static void note(const char *call, long first_, long second, const char *a, const char *b, int data) {
    int before = errno;
    char line[9000], link[64];
    int length = snprintf(line, sizeof line, "%s\t%ld\t%ld\t%s\t%s\n", call, first_, second, a, b);
    char *all = malloc(length + (data >= 0 ? second : 0));
    memcpy(all, line, length);
    if (data >= 0) { /* read again, by another descriptor: this one may be for writing alone */
        snprintf(link, sizeof link, "/proc/self/fd/%d", data);
        int again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY);
        length += syscall(SYS_pread64, again, all + length, second, first_);
        syscall(SYS_close, again);
    }
    syscall(SYS_write, notes, all, length);
    free(all);
    errno = before;
}
static void note_written(int fd, long begin, long size) {
    char path[8192];
    if (begin < 0) begin = syscall(SYS_lseek, fd, 0L, SEEK_CUR) - size;
    note("write", begin, size, whole(path, fd, NULL), "", fd);
}
static void note_paths(const char *call, long number, int c, const char *a, int d, const char *b) {
    char first_[8192], second[8192];
    note(call, number, 0, whole(first_, c, a), b ? whole(second, d, b) : "", -1);
}
static void note_made(int d, const char *path) {
    struct stat found;
    syscall(SYS_newfstatat, d, path, &found, 0);
    note_paths("mkdir", found.st_ino, d, path, 0, NULL);
}
static void note_opened(int d, const char *path, int flags) {
    if (flags & (O_CREAT | O_TRUNC)) note_paths("open", (flags & O_TRUNC) != 0, d, path, 0, NULL);
}

#define REAL(name) static typeof(name) *real; if (!real) real = (typeof(name) *)dlsym(RTLD_NEXT, #name)
#define FAIL(kind, concerned, result) if (armed == kind && (concerned) && strikes()) return result
#define CALL(type, name, parameters, arguments, kind, concerned) \
    type name parameters { REAL(name); FAIL(kind, concerned, -1); return real arguments; }
#define NOTED(type, name, parameters, arguments, kind, concerned, noting) \
    type name parameters { \
        REAL(name); FAIL(kind, concerned, -1); type result = real arguments; \
        if (notes >= 0 && result >= 0 && (concerned)) noting; \
        return result; }
#define OPENS(name) \
    int name(const char *p, int f, ...) { \
        REAL(name); va_list a; va_start(a, f); mode_t m = va_arg(a, mode_t); va_end(a); \
        FAIL(OPEN, by_path(p), -1); int d = real(p, f, m); \
        if (notes >= 0 && d >= 0 && by_path(p)) note_opened(AT_FDCWD, p, f); \
        return d; }
#define OPENS_AT(name) \
    int name(int d, const char *p, int f, ...) { \
        REAL(name); va_list a; va_start(a, f); mode_t m = va_arg(a, mode_t); va_end(a); \
        FAIL(OPEN, by_at(d, p), -1); int fd = real(d, p, f, m); \
        if (notes >= 0 && fd >= 0 && by_at(d, p)) note_opened(d, p, f); \
        return fd; }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
CALL(ssize_t, read, (int d, void *b, size_t n), (d, b, n), READ, by_fd(d))
CALL(ssize_t, pread, (int d, void *b, size_t n, off_t o), (d, b, n, o), READ, by_fd(d))
CALL(ssize_t, pread64, (int d, void *b, size_t n, off64_t o), (d, b, n, o), READ, by_fd(d))
CALL(ssize_t, preadv, (int d, const struct iovec *v, int c, off_t o), (d, v, c, o), READ, by_fd(d))
CALL(ssize_t, preadv64, (int d, const struct iovec *v, int c, off64_t o), (d, v, c, o), READ, by_fd(d))
NOTED(ssize_t, write, (int d, const void *b, size_t n), (d, b, n), WRITE, by_fd(d),
      note_written(d, -1, result))
NOTED(ssize_t, pwrite, (int d, const void *b, size_t n, off_t o), (d, b, n, o), WRITE, by_fd(d),
      note_written(d, o, result))
NOTED(ssize_t, pwrite64, (int d, const void *b, size_t n, off64_t o), (d, b, n, o), WRITE, by_fd(d),
      note_written(d, o, result))
NOTED(ssize_t, writev, (int d, const struct iovec *v, int c), (d, v, c), WRITE, by_fd(d),
      note_written(d, -1, result))
NOTED(int, ftruncate, (int d, off_t n), (d, n), WRITE, by_fd(d),
      note_paths("size", n, d, NULL, 0, NULL))
NOTED(int, ftruncate64, (int d, off64_t n), (d, n), WRITE, by_fd(d),
      note_paths("size", n, d, NULL, 0, NULL))
NOTED(ssize_t, sendfile, (int o, int i, off_t *p, size_t n), (o, i, p, n), WRITE, by_fd(o),
      note_written(o, -1, result))
NOTED(ssize_t, sendfile64, (int o, int i, off64_t *p, size_t n), (o, i, p, n), WRITE, by_fd(o),
      note_written(o, -1, result))
NOTED(int, fsync, (int d), (d), FSYNC, by_fd(d),
      note_paths("fsync", 0, d, NULL, 0, NULL))
NOTED(int, fdatasync, (int d), (d), FSYNC, by_fd(d),
      note_paths("fsync", 0, d, NULL, 0, NULL))
CALL(int, stat, (const char *p, struct stat *s), (p, s), STAT, by_path(p))
CALL(int, stat64, (const char *p, struct stat64 *s), (p, s), STAT, by_path(p))
CALL(int, lstat, (const char *p, struct stat *s), (p, s), STAT, by_path(p))
CALL(int, lstat64, (const char *p, struct stat64 *s), (p, s), STAT, by_path(p))
CALL(int, fstat, (int d, struct stat *s), (d, s), STAT, by_fd(d))
CALL(int, fstat64, (int d, struct stat64 *s), (d, s), STAT, by_fd(d))
CALL(int, fstatat, (int d, const char *p, struct stat *s, int f), (d, p, s, f), STAT, by_at(d, p))
CALL(int, fstatat64, (int d, const char *p, struct stat64 *s, int f), (d, p, s, f), STAT, by_at(d, p))
CALL(int, statvfs, (const char *p, struct statvfs *s), (p, s), STAT, by_path(p))
CALL(int, statvfs64, (const char *p, struct statvfs64 *s), (p, s), STAT, by_path(p))
CALL(int, access, (const char *p, int m), (p, m), STAT, by_path(p))
NOTED(int, rename, (const char *a, const char *b), (a, b), RENAME, by_path(a) || by_path(b),
      note_paths("rename", 0, AT_FDCWD, a, AT_FDCWD, b))
NOTED(int, renameat, (int c, const char *a, int d, const char *b), (c, a, d, b), RENAME, by_at(c, a) || by_at(d, b),
      note_paths("rename", 0, c, a, d, b))
NOTED(int, renameat2, (int c, const char *a, int d, const char *b, unsigned f), (c, a, d, b, f), RENAME,
     by_at(c, a) || by_at(d, b),
      note_paths("rename", f, c, a, d, b))
NOTED(int, unlink, (const char *p), (p), UNLINK, by_path(p),
      note_paths("unlink", 0, AT_FDCWD, p, 0, NULL))
NOTED(int, unlinkat, (int d, const char *p, int f), (d, p, f), UNLINK, by_at(d, p),
      note_paths("unlink", 0, d, p, 0, NULL))
NOTED(int, rmdir, (const char *p), (p), UNLINK, by_path(p),
      note_paths("unlink", 0, AT_FDCWD, p, 0, NULL))
NOTED(int, mkdir, (const char *p, mode_t m), (p, m), MKDIR, by_path(p),
      note_made(AT_FDCWD, p))
NOTED(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), MKDIR, by_at(d, p),
      note_made(d, p))
NOTED(int, link, (const char *a, const char *b), (a, b), LINK, by_path(b),
      note_paths("link", 0, AT_FDCWD, a, AT_FDCWD, b))
NOTED(int, linkat, (int c, const char *a, int d, const char *b, int f), (c, a, d, b, f), LINK, by_at(d, b),
      note_paths("link", 0, c, a, d, b))
NOTED(int, symlink, (const char *a, const char *b), (a, b), LINK, by_path(b),
      note("symlink", 0, 0, b, a, -1))
NOTED(int, symlinkat, (const char *a, int d, const char *b), (a, d, b), LINK, by_at(d, b),
      note_paths("symlink", 0, d, b, AT_FDCWD, a))
CALL(ssize_t, readlink, (const char *p, char *b, size_t n), (p, b, n), READLINK, by_path(p))
CALL(ssize_t, readlinkat, (int d, const char *p, char *b, size_t n), (d, p, b, n), READLINK, by_at(d, p))
CALL(int, flock, (int d, int o), (d, o), FLOCK, by_fd(d))
/* MADV_POPULATE_READ and MADV_POPULATE_WRITE; a mapping's path is not known */
CALL(int, madvise, (void *a, size_t n, int advice), (a, n, advice), POPULATE, advice == 22 || advice == 23)

void *mmap(void *a, size_t n, int p, int f, int d, off_t o) {
    REAL(mmap); FAIL(MMAP, d >= 0 && by_fd(d), MAP_FAILED); return real(a, n, p, f, d, o);
}
void *mmap64(void *a, size_t n, int p, int f, int d, off64_t o) {
    REAL(mmap64); FAIL(MMAP, d >= 0 && by_fd(d), MAP_FAILED); return real(a, n, p, f, d, o);
}
DIR *opendir(const char *p) { REAL(opendir); FAIL(SCANDIR, by_path(p), NULL); return real(p); }
DIR *fdopendir(int d) { REAL(fdopendir); FAIL(SCANDIR, by_fd(d), NULL); return real(d); }
struct dirent *readdir(DIR *d) { REAL(readdir); FAIL(SCANDIR, by_fd(dirfd(d)), NULL); return real(d); }
struct dirent64 *readdir64(DIR *d) { REAL(readdir64); FAIL(SCANDIR, by_fd(dirfd(d)), NULL); return real(d); }
int close(int d) {
    REAL(close);
    int concerned = armed == CLOSE && by_fd(d), result = real(d); /* a descriptor is gone, whatever close() returns */
    FAIL(CLOSE, concerned, -1);
    return result;
}
long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_list v; va_start(v, number);
    long a = va_arg(v, long), b = va_arg(v, long), c = va_arg(v, long), d = va_arg(v, long), e = va_arg(v, long),
         f = va_arg(v, long);
    va_end(v);
    long result = real(number, a, b, c, d, e, f);
    if (number == SYS_io_getevents && armed == READ)
        for (long i = 0; i < result; i++)
            if (strikes()) ((struct io_event *)d)[i].res = -code;
    return result;
}
