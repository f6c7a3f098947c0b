/* Counts the libc calls that change files, and lets one of them, or all from one on, end badly.
 *
 * A process that the operation forks is part of it: its calls count, and SIGKILL means the process that was armed.
 *
 * Loaded before libc (LD_PRELOAD). Until `shim_arm` is called every call goes through. A fsync counts and may fail, but
 * does nothing unless calls are logged: what a power cut leaves is not looked at, and thousands of runs would wait for
 * the disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode {
    OFF,
    COUNT,      /* only count */
    KILL,       /* SIGKILL instead of the call */
    FAIL,       /* the call fails */
    BROKEN,     /* it fails, and so does every call after it */
    FULL,       /* it fails if it takes space, and so does every later one that does */
    HALF,       /* a write does half of its work; nothing else happens */
    BYTE,       /* a write does one byte */
    HALF_FAIL,  /* a write does half, the next call fails, the ones after it succeed */
    HALF_FULL,  /* a write does half, every later call that takes space fails */
    HALF_KILL,  /* a write does half, SIGKILL comes instead of the next call */
    HALF_LOST,  /* a write does half, SIGKILL comes to the process that makes the next call, be it a forked one */
    LOST        /* of these two the second part */
};

/* Shared with every process that the armed one forks. Before that there is nothing, and every call goes through. */
static struct {
    atomic_int mode, target, error_number, calls, writes;
    pid_t armed;
    int logs;
    atomic_int logged; /* bytes */
    char log[1 << 16]; /* names of calls, a line each */
} *state;

/* `number` counts from 1: calls up to FULL, writes of more than one byte from HALF on. `logs`: the calls are noted. */
void shim_arm(int how, int number, int error, int logs) {
    if (!state)
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED)
        abort();
    state->calls = state->writes = 0;
    state->target = number;
    state->error_number = error;
    state->armed = getpid();
    state->logs = logs;
    state->logged = 0;
    state->mode = how;
}

/* Ends it. How many calls there were, how many writes of more than one byte, and the names of all. */
void shim_disarm(void) { state->mode = OFF; }
int shim_count(void) { return state->calls; }
int shim_writes(void) { return state->writes; }
const char *shim_log(void) { return state->log; }

static void note(const char *name) {
    size_t length = strlen(name);
    size_t at = atomic_fetch_add(&state->logged, (int)length + 1);
    if (at + length + 2 > sizeof state->log)
        abort();
    memcpy(state->log + at, name, length);
    state->log[at + length] = '\n';
}

/* Kills a process; comes back only if that is another one. */
static void end(pid_t process) {
    kill(process, SIGKILL);
    while (process == getpid())
        pause();
}

/* What becomes of a call: 0 it is made, -1 it fails with errno set, n > 0 only n bytes of it are written. */
static ssize_t fate(const char *name, int takes_space, size_t size) {
    int how = state ? state->mode : OFF;
    if (how == OFF)
        return 0;
    int call = ++state->calls, write = size > 1 ? ++state->writes : 0, at = state->target;
    if (state->logs)
        note(name);
    int fails = 0;
    switch (how) {
    case KILL:
        if (call == at)
            end(state->armed);
        break;
    case FAIL:
        fails = call == at;
        break;
    case BROKEN:
        fails = call >= at;
        break;
    case FULL:
        fails = call >= at && takes_space;
        break;
    case HALF:
    case BYTE:
        if (write == at)
            return how == HALF ? (ssize_t)(size / 2) : 1;
        break;
    case HALF_FAIL:
    case HALF_FULL:
    case HALF_KILL:
        if (write == at) {
            state->mode = how == HALF_FAIL ? FAIL : how == HALF_FULL ? FULL : KILL;
            state->target = call + 1;
            return (ssize_t)(size / 2);
        }
        break;
    case HALF_LOST:
        if (write == at) {
            state->mode = LOST;
            return (ssize_t)(size / 2);
        }
        break;
    case LOST:
        state->mode = COUNT;
        end(getpid());
        break;
    }
    if (fails)
        errno = state->error_number;
    return fails ? -1 : 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, space, parameters, arguments)                                                                 \
    type name parameters {                                                                                             \
        static __typeof__(&name) real;                                                                                 \
        if (!real)                                                                                                     \
            real = REAL(name);                                                                                         \
        return fate(#name, space, 0) < 0 ? -1 : real arguments;                                                        \
    }

WRAP(int, link, 1, (const char *a, const char *b), (a, b))
WRAP(int, linkat, 1, (int f, const char *a, int g, const char *b, int flags), (f, a, g, b, flags))
WRAP(int, symlink, 1, (const char *a, const char *b), (a, b))
WRAP(int, symlinkat, 1, (const char *a, int f, const char *b), (a, f, b))
WRAP(int, rename, 1, (const char *a, const char *b), (a, b))
WRAP(int, renameat, 1, (int f, const char *a, int g, const char *b), (f, a, g, b))
WRAP(int, renameat2, 1, (int f, const char *a, int g, const char *b, unsigned flags), (f, a, g, b, flags))
WRAP(int, unlink, 0, (const char *a), (a))
WRAP(int, unlinkat, 0, (int f, const char *a, int flags), (f, a, flags))
WRAP(int, rmdir, 0, (const char *a), (a))
WRAP(int, mkdir, 1, (const char *a, mode_t m), (a, m))
WRAP(int, mkdirat, 1, (int f, const char *a, mode_t m), (f, a, m))
WRAP(int, truncate, 0, (const char *a, off_t size), (a, size))
WRAP(int, truncate64, 0, (const char *a, off64_t size), (a, size))
WRAP(int, ftruncate, 0, (int f, off_t size), (f, size))
WRAP(int, ftruncate64, 0, (int f, off64_t size), (f, size))
WRAP(int, flock, 0, (int f, int how), (f, how))
WRAP(int, fallocate, 1, (int f, int how, off_t a, off_t size), (f, how, a, size))
WRAP(int, fallocate64, 1, (int f, int how, off64_t a, off64_t size), (f, how, a, size))
WRAP(ssize_t, copy_file_range, 1, (int f, off64_t *a, int g, off64_t *b, size_t n, unsigned flags), (f, a, g, b, n, flags))
WRAP(ssize_t, sendfile, 1, (int f, int g, off_t *a, size_t n), (f, g, a, n))
WRAP(ssize_t, sendfile64, 1, (int f, int g, off64_t *a, size_t n), (f, g, a, n))
WRAP(ssize_t, writev, 1, (int f, const struct iovec *v, int n), (f, v, n))
WRAP(ssize_t, pwritev, 1, (int f, const struct iovec *v, int n, off_t a), (f, v, n, a))
WRAP(ssize_t, pwritev64v2, 1, (int f, const struct iovec *v, int n, off64_t a, int flags), (f, v, n, a, flags))

/* These tell the error by what they return. */
int posix_fallocate(int f, off_t a, off_t size) {
    return fate("posix_fallocate", 1, 0) < 0 ? errno : REAL(posix_fallocate)(f, a, size);
}
int posix_fallocate64(int f, off64_t a, off64_t size) {
    return fate("posix_fallocate64", 1, 0) < 0 ? errno : REAL(posix_fallocate64)(f, a, size);
}

static int real_sync(void) { return !state || state->mode == OFF || state->logs; }
int fsync(int f) { return fate("fsync", 0, 0) < 0 ? -1 : real_sync() ? REAL(fsync)(f) : 0; }
int fdatasync(int f) { return fate("fdatasync", 0, 0) < 0 ? -1 : real_sync() ? REAL(fdatasync)(f) : 0; }

ssize_t write(int f, const void *data, size_t size) {
    static __typeof__(&write) real;
    if (!real)
        real = REAL(write);
    ssize_t part = fate("write", 1, size);
    return part < 0 ? -1 : real(f, data, part ? (size_t)part : size);
}

ssize_t pwrite64(int f, const void *data, size_t size, off64_t a) {
    static __typeof__(&pwrite64) real;
    if (!real)
        real = REAL(pwrite64);
    ssize_t part = fate("pwrite64", 1, size);
    return part < 0 ? -1 : real(f, data, part ? (size_t)part : size, a);
}
ssize_t pwrite(int f, const void *data, size_t size, off_t a) { return pwrite64(f, data, size, a); }

/* Opening counts where it may make a file or cut one. Only for a file that isn't there yet it takes space. */
static int opens(const char *name, int flags, int exists) {
    return flags & (O_CREAT | O_TRUNC) ? (int)fate(name, !exists, 0) : 0;
}
#define OPEN(name)                                                                                                     \
    int name(const char *a, int flags, ...) {                                                                          \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t m = va_arg(rest, mode_t);                                                                               \
        va_end(rest);                                                                                                  \
        return opens(#name, flags, access(a, F_OK) == 0) < 0 ? -1 : REAL(name)(a, flags, m);                           \
    }
#define OPENAT(name)                                                                                                   \
    int name(int f, const char *a, int flags, ...) {                                                                   \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t m = va_arg(rest, mode_t);                                                                               \
        va_end(rest);                                                                                                  \
        return opens(#name, flags, faccessat(f, a, F_OK, 0) == 0) < 0 ? -1 : REAL(name)(f, a, flags, m);               \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
