/* Counts the I/O calls of a program below one folder, and makes the n-th one fail or be the last. Loaded with LD_PRELOAD.
 *
 * FAULTS_UNDER  the folder; other files are left alone
 * FAULTS_ORDER  a file with an order "TOKEN CALLS ACTION NTH [PATTERN]". A new token starts counting again, so that a running server can
 *               be given the next order. While the file is empty nothing is counted.
 *                 CALLS   letters: o open, r read, w write, s sync, n names (rename, link, remove, make directory), m map
 *                 ACTION  count, kill (before the call), killed (after it), short (half of a write), or an errno
 *                 NTH     1 is the first; 0 every one
 *                 PATTERN only calls on paths that match it, as in fnmatch with extended patterns; a rename is on its new name
 * FAULTS_SEEN   the number of calls so far is written there, as decimal digits
 *
 * Calls that a program issues without libc are not seen. rustix would make the rename that ends a commit so; crates/hack has it use
 * libc.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { NOTHING, COUNT, KILL, KILLED, SHORT, ERROR };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char token[64];
static long seen;
/* The path of the call that is being looked at. */
static __thread char subject[PATH_MAX];

static int below(const char *path) {
    const char *under = getenv("FAULTS_UNDER");
    if (!under || strncmp(path, under, strlen(under)) != 0) return 0;
    snprintf(subject, sizeof subject, "%s", path);
    return 1;
}

static int named(int dir, const char *path) {
    char full[2 * PATH_MAX], link[64];
    if (path[0] == '/') return below(path);
    if (dir == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, full, PATH_MAX - 1);
    if (n < 0) return 0;
    snprintf(full + n, sizeof full - n, "/%s", path);
    return below(full);
}

static int held(int fd) {
    char link[64], full[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, full, sizeof full - 1);
    if (n < 0) return 0;
    full[n] = 0;
    return below(full);
}

/* What to do with this call. Uses system calls directly, so that it does not count itself. */
static enum action turn(char call, int *error) {
    const char *order = getenv("FAULTS_ORDER"), *tally = getenv("FAULTS_SEEN");
    char text[256], now[64], calls[16], action[16], pattern[128];
    long nth;
    int kept = errno;
    enum action result = NOTHING;
    if (!order) return NOTHING;
    int fd = syscall(SYS_openat, AT_FDCWD, order, O_RDONLY | O_CLOEXEC);
    /* No descriptor is free: read the order of the last call again when there is one. */
    if (fd < 0) { errno = kept; return NOTHING; }
    ssize_t n = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    errno = kept;
    if (n <= 0) return NOTHING;
    text[n] = 0;
    int words = sscanf(text, "%63s %15s %15s %ld %127s", now, calls, action, &nth, pattern);
    if (words < 4 || !strchr(calls, call)) return NOTHING;
    if (words == 5 && fnmatch(pattern, subject, FNM_EXTMATCH) != 0) return NOTHING;
    pthread_mutex_lock(&lock);
    if (strcmp(now, token)) { strcpy(token, now); seen = 0; }
    seen++;
    if (tally) {
        int out = syscall(SYS_openat, AT_FDCWD, tally, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        int len = snprintf(text, sizeof text, "%ld", seen);
        if (out >= 0) { syscall(SYS_write, out, text, len); syscall(SYS_close, out); }
    }
    if (nth == 0 || seen == nth) {
        if (!strcmp(action, "count")) result = COUNT;
        else if (!strcmp(action, "kill")) result = KILL;
        else if (!strcmp(action, "killed")) result = KILLED;
        else if (!strcmp(action, "short")) result = SHORT;
        else { result = ERROR; *error = atoi(action); }
    }
    pthread_mutex_unlock(&lock);
    errno = kept;
    if (result == KILL) syscall(SYS_kill, getpid(), SIGKILL);
    return result;
}

static void end(enum action action) {
    if (action == KILLED) syscall(SYS_kill, getpid(), SIGKILL);
}

/* A wrapper: RETURN NAME(PARAMETERS) is real(ARGUMENTS), counted as CALL if MINE, and FAILED after an error. */
#define WRAP(TYPE, NAME, PARAMETERS, ARGUMENTS, MINE, CALL, FAILED) \
    TYPE NAME PARAMETERS { \
        static TYPE(*real) PARAMETERS; \
        if (!real) real = (TYPE(*) PARAMETERS)dlsym(RTLD_NEXT, #NAME); \
        int error = 0; \
        enum action action = (MINE) ? turn(CALL, &error) : NOTHING; \
        if (action == ERROR) { errno = error; return FAILED; } \
        TYPE result = real ARGUMENTS; \
        end(action); \
        return result; \
    }

/* A write, which may be short. */
#define WRAP_WRITE(NAME, PARAMETERS, ARGUMENTS) \
    ssize_t NAME PARAMETERS { \
        static ssize_t(*real) PARAMETERS; \
        if (!real) real = (ssize_t(*) PARAMETERS)dlsym(RTLD_NEXT, #NAME); \
        int error = 0; \
        enum action action = held(fd) ? turn('w', &error) : NOTHING; \
        if (action == ERROR) { errno = error; return -1; } \
        if (action == SHORT && size > 1) size /= 2; \
        ssize_t result = real ARGUMENTS; \
        end(action); \
        return result; \
    }

#define WRAP_OPEN(NAME) \
    int NAME(const char *path, int flags, ...) { \
        static int (*real)(const char *, int, ...); \
        if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #NAME); \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        int error = 0; \
        enum action action = named(AT_FDCWD, path) ? turn('o', &error) : NOTHING; \
        if (action == ERROR) { errno = error; return -1; } \
        int result = real(path, flags, mode); \
        end(action); \
        return result; \
    }

#define WRAP_OPENAT(NAME) \
    int NAME(int dir, const char *path, int flags, ...) { \
        static int (*real)(int, const char *, int, ...); \
        if (!real) real = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #NAME); \
        va_list list; va_start(list, flags); mode_t mode = va_arg(list, mode_t); va_end(list); \
        int error = 0; \
        enum action action = named(dir, path) ? turn('o', &error) : NOTHING; \
        if (action == ERROR) { errno = error; return -1; } \
        int result = real(dir, path, flags, mode); \
        end(action); \
        return result; \
    }

WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)
WRAP(DIR *, opendir, (const char *path), (path), named(AT_FDCWD, path), 'o', NULL)
WRAP(struct dirent64 *, readdir64, (DIR *dir), (dir), held(dirfd(dir)), 'r', NULL)
WRAP(ssize_t, read, (int fd, void *into, size_t size), (fd, into, size), held(fd), 'r', -1)
WRAP(ssize_t, pread, (int fd, void *into, size_t size, off_t at), (fd, into, size, at), held(fd), 'r', -1)
WRAP(ssize_t, pread64, (int fd, void *into, size_t size, off64_t at), (fd, into, size, at), held(fd), 'r', -1)
WRAP_WRITE(write, (int fd, const void *from, size_t size), (fd, from, size))
WRAP_WRITE(pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
WRAP_WRITE(pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
WRAP(ssize_t, writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), held(fd), 'w', -1)
WRAP(int, ftruncate, (int fd, off_t size), (fd, size), held(fd), 'w', -1)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), held(fd), 'w', -1)
WRAP(ssize_t, copy_file_range, (int in, off64_t *from, int fd, off64_t *at, size_t size, unsigned flags),
     (in, from, fd, at, size, flags), held(fd), 'w', -1)
WRAP(ssize_t, sendfile, (int fd, int in, off_t *from, size_t size), (fd, in, from, size), held(fd), 'w', -1)
WRAP(ssize_t, sendfile64, (int fd, int in, off64_t *from, size_t size), (fd, in, from, size), held(fd), 'w', -1)
WRAP(int, fsync, (int fd), (fd), held(fd), 's', -1)
WRAP(int, fdatasync, (int fd), (fd), held(fd), 's', -1)
WRAP(int, rename, (const char *from, const char *to), (from, to), named(AT_FDCWD, to), 'n', -1)
WRAP(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), named(b, to), 'n', -1)
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), named(b, to),
     'n', -1)
WRAP(int, link, (const char *from, const char *to), (from, to), named(AT_FDCWD, to), 'n', -1)
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), named(b, to), 'n', -1)
WRAP(int, unlink, (const char *path), (path), named(AT_FDCWD, path), 'n', -1)
WRAP(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), named(dir, path), 'n', -1)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), named(AT_FDCWD, path), 'n', -1)
WRAP(int, rmdir, (const char *path), (path), named(AT_FDCWD, path), 'n', -1)
WRAP(void *, mmap, (void *at, size_t size, int prot, int flags, int fd, off_t from), (at, size, prot, flags, fd, from),
     fd >= 0 && held(fd), 'm', MAP_FAILED)
WRAP(void *, mmap64, (void *at, size_t size, int prot, int flags, int fd, off64_t from), (at, size, prot, flags, fd, from),
     fd >= 0 && held(fd), 'm', MAP_FAILED)
