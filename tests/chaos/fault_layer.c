/* The disk and the wall clock of one node, as a library that is preloaded into its process.
 *
 * What it does is said by a control block (a file that the harness maps, too), at any time:
 * syncs or writes that fail with EIO, syncs or writes that stall, a wall clock that is off. With
 * `recording` it also keeps an undo log, from which the harness makes the state after a power loss:
 *
 *   before a file below the root is changed, a record says how to take the change back;
 *   when a sync has returned, a record says that the changes before it are durable.
 *
 * One record:  u64 kind | u64 sequence | u64 inode | i64 offset | i64 old size | u64 length | payload
 *
 *   W write (payload: the bytes before)      Z size changed         S file synced through `offset`
 *   C created (payload: path)                D directory synced through `offset`
 *   R renamed (payload: old path, NUL, new path, NUL, path of a link to what was replaced or nothing)
 *   U unlinked (payload: path, NUL, path of a link that keeps the file)      M directory made (path)
 *
 * Rules: nothing outside the root is looked at. A record is written before the change it describes,
 * by the thread that makes the change, so that a kill leaves no change without a record. Linux AIO
 * counts when its completion is fetched: only then does the program know of it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int64_t sync_errors;       /* so many syncs fail from now on */
    volatile int64_t write_errors;      /* so many writes fail */
    volatile int64_t sync_stall_until;  /* CLOCK_MONOTONIC nanoseconds */
    volatile int64_t write_stall_until;
    volatile int64_t clock_offset;      /* nanoseconds, of CLOCK_REALTIME */
    volatile int64_t recording;
    volatile int64_t sync_errors_given; /* counted for the harness */
    volatile int64_t syncs;
    volatile int64_t spares;            /* errors hit files that are being prepared, not those in use */
};

#define REAL(name) ({ if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name); real_##name; })
#define PENDING_MAX 4096

static struct control nothing;
static struct control *control = &nothing;
static char root[4096];
static size_t root_length;
static char saved[4096];
static const char *boot;
static int log_fd = -1;
static uint64_t sequence;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct { uint64_t ticket, inode, sequence; int used, failed; } pending[PENDING_MAX];

static long (*real_syscall)(long, ...);
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static ssize_t (*real_pwrite64)(int, const void *, size_t, off64_t);
static ssize_t (*real_pwritev64)(int, const struct iovec *, int, off64_t);
static ssize_t (*real_pwritev64v2)(int, const struct iovec *, int, off64_t, int);
static int (*real_ftruncate64)(int, off64_t);
static int (*real_posix_fallocate64)(int, off64_t, off64_t);
static int (*real_open64)(const char *, int, ...);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);
static int (*real_mkdir)(const char *, mode_t);

__attribute__((constructor)) static void begin(void) {
    const char *block = getenv("RAFTQ_CHAOS_CONTROL"), *where = getenv("RAFTQ_CHAOS_ROOT");
    const char *undo = getenv("RAFTQ_CHAOS_UNDO");
    if (!block || !where || !undo) return;
    int fd = open(block, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED) return;
    snprintf(root, sizeof root, "%s/", where);
    root_length = strlen(root);
    boot = getenv("RAFTQ_CHAOS_BOOT");
    snprintf(saved, sizeof saved, "%s.saved", undo);
    control = found;
    /* Later processes of the node go on in the same log. */
    const char *life = getenv("RAFTQ_CHAOS_LIFE");
    sequence = (uint64_t)(life ? atoi(life) : 0) << 40;
    if (control->recording) log_fd = open(undo, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int64_t now(void) {
    struct timespec at;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void stall(volatile int64_t *until) {
    int kept = errno;
    struct timespec step = {0, 2000000};
    while (now() < *until) nanosleep(&step, NULL);
    errno = kept;
}

/* One of so many errors is taken; 0 when none is left. */
static int take(volatile int64_t *left) {
    while (1) {
        int64_t value = *left;
        if (value <= 0) return 0;
        if (__atomic_compare_exchange_n(left, &value, value - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
    }
}

static int is_ours_path(const char *path) {
    return root_length && path && strncmp(path, root, root_length) == 0;
}

/* The path of a file below the root, or of the root, in `path`; 0 if it is another one. */
static int find_path(int fd, char path[4096]) {
    char link[64];
    if (!root_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 4095);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_ours_path(path) || (length == (ssize_t)root_length - 1 && !strncmp(path, root, length));
}

static int is_ours(int fd) {
    char path[4096];
    return find_path(fd, path);
}

/* Whether an error that was asked for hits this file; it is used up then. */
static int fails(int fd, volatile int64_t *left) {
    char path[4096];
    if (*left <= 0 || !find_path(fd, path)) return 0;
    return strstr(path, control->spares ? "/spare-" : "/segment-") && take(left);
}

/* --- The undo log ------------------------------------------------------------------------------ */

struct record { uint64_t kind, sequence, inode; int64_t offset, old_size; uint64_t length; };

static void keep(char kind, uint64_t inode, int64_t offset, int64_t old_size, const void *data, size_t length) {
    int before = errno;
    pthread_mutex_lock(&lock);
    struct record record = {kind, ++sequence, inode, offset, old_size, length};
    struct iovec parts[2] = {{&record, sizeof record}, {(void *)data, length}};
    /* The log is a file of the harness: a short write would be a full disk there. */
    if (syscall(SYS_writev, log_fd, parts, length ? 2 : 1) != (long)(sizeof record + length)) abort();
    pthread_mutex_unlock(&lock);
    errno = before;
}

static void keep_write(int fd, int64_t offset, size_t length) {
    struct stat64 facts;
    if (log_fd < 0 || !is_ours(fd) || fstat64(fd, &facts)) return;
    /* What was behind the end of the file counts as zeros. */
    char *old = calloc(length ? length : 1, 1);
    if (pread64(fd, old, length, offset) < 0) {
        /* It was opened for writing alone. */
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int again = REAL(open64)(link, O_RDONLY | O_CLOEXEC);
        if (again < 0 || pread64(again, old, length, offset) < 0) abort();
        close(again);
    }
    keep('W', facts.st_ino, offset, facts.st_size, old, length);
    free(old);
}

static void keep_size(int fd) {
    struct stat64 facts;
    if (log_fd < 0 || !is_ours(fd) || fstat64(fd, &facts)) return;
    keep('Z', facts.st_ino, 0, facts.st_size, NULL, 0);
}

static uint64_t inode_of(int fd, int *is_directory) {
    struct stat64 facts;
    if (fstat64(fd, &facts)) return 0;
    *is_directory = S_ISDIR(facts.st_mode);
    return facts.st_ino;
}

/* --- Syncs ------------------------------------------------------------------------------------- */

static int sync_with(int fd, int (*real)(int)) {
    if (!is_ours(fd)) return real(fd);
    int is_directory = 0;
    uint64_t inode = inode_of(fd, &is_directory), through = sequence;
    stall(&control->sync_stall_until);
    if (fails(fd, &control->sync_errors)) {
        __atomic_add_fetch(&control->sync_errors_given, 1, __ATOMIC_SEQ_CST);
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    __atomic_add_fetch(&control->syncs, 1, __ATOMIC_SEQ_CST);
    if (!result && log_fd >= 0) keep(is_directory ? 'D' : 'S', inode, through, 0, NULL, 0);
    return result;
}

int fsync(int fd) { return sync_with(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_with(fd, REAL(fdatasync)); }

struct later { aio_context_t context; struct iocb request; int fd; };

static void *submit_later(void *given) {
    struct later *later = given;
    struct iocb *list[1] = {&later->request};
    stall(&control->sync_stall_until);
    REAL(syscall)(SYS_io_submit, later->context, 1L, list);
    close(later->fd);
    free(later);
    return NULL;
}

static long submit(aio_context_t context, struct iocb **list) {
    struct iocb *request = list[0];
    int is_directory = 0, failed = fails(request->aio_fildes, &control->sync_errors);
    if (failed) __atomic_add_fetch(&control->sync_errors_given, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PENDING_MAX; i++)
        if (!pending[i].used) {
            pending[i].ticket = request->aio_data;
            pending[i].inode = inode_of(request->aio_fildes, &is_directory);
            pending[i].sequence = sequence;
            pending[i].failed = failed;
            pending[i].used = 1;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (now() >= control->sync_stall_until) return REAL(syscall)(SYS_io_submit, context, 1L, list);
    /* A slow disk takes the request at once and answers late: it waits on a thread of its own. */
    struct later *later = malloc(sizeof *later);
    pthread_t thread;
    later->context = context;
    later->request = *request;
    later->fd = later->request.aio_fildes = dup(request->aio_fildes);
    if (pthread_create(&thread, NULL, submit_later, later)) abort();
    pthread_detach(thread);
    return 1;
}

static long fetch(long context, long least, long most, struct io_event *events, void *timeout) {
    long count = REAL(syscall)(SYS_io_getevents, context, least, most, events, timeout);
    for (long i = 0; i < count; i++) {
        uint64_t inode = 0, through = 0;
        pthread_mutex_lock(&lock);
        for (int j = 0; j < PENDING_MAX; j++)
            if (pending[j].used && pending[j].ticket == events[i].data) {
                pending[j].used = 0;
                inode = pending[j].inode;
                through = pending[j].sequence;
                if (pending[j].failed) events[i].res = -EIO;
                break;
            }
        pthread_mutex_unlock(&lock);
        __atomic_add_fetch(&control->syncs, 1, __ATOMIC_SEQ_CST);
        if (inode && log_fd >= 0 && events[i].res >= 0) keep('S', inode, through, 0, NULL, 0);
    }
    return count;
}

long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit && b == 1 && ((struct iocb **)c)[0]->aio_lio_opcode == IOCB_CMD_FDSYNC)
        return submit((aio_context_t)a, (struct iocb **)c);
    if (number == SYS_io_getevents) return fetch(a, b, c, (struct io_event *)d, (void *)e);
    return REAL(syscall)(number, a, b, c, d, e, f);
}

/* --- Writes ------------------------------------------------------------------------------------ */

static int refused(int fd) {
    if (control == &nothing || (!control->write_errors && now() >= control->write_stall_until)) return 0;
    if (!is_ours(fd)) return 0;
    stall(&control->write_stall_until);
    if (!fails(fd, &control->write_errors)) return 0;
    errno = EIO;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    if (refused(fd)) return -1;
    keep_write(fd, offset, length);
    return REAL(pwrite64)(fd, data, length, offset);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

static int begin_vectors(int fd, const struct iovec *parts, int count, off64_t offset) {
    size_t length = 0;
    if (refused(fd)) return -1;
    for (int i = 0; i < count; i++) length += parts[i].iov_len;
    keep_write(fd, offset, length);
    return 0;
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return begin_vectors(fd, parts, count, offset) ? -1 : REAL(pwritev64)(fd, parts, count, offset);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) { return pwritev64(fd, parts, count, offset); }
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    return begin_vectors(fd, parts, count, offset) ? -1 : REAL(pwritev64v2)(fd, parts, count, offset, flags);
}
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) { return pwritev64v2(fd, parts, count, offset, flags); }

int ftruncate64(int fd, off64_t size) {
    struct stat64 facts;
    if (log_fd >= 0 && is_ours(fd) && !fstat64(fd, &facts) && facts.st_size > size)
        keep_write(fd, size, facts.st_size - size);
    else
        keep_size(fd);
    return REAL(ftruncate64)(fd, size);
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    keep_size(fd);
    return REAL(posix_fallocate64)(fd, offset, length);
}
int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

/* --- Names ------------------------------------------------------------------------------------- */

int open64(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    /* After a power loss the machine has started anew, and must say so. */
    if (boot && !strcmp(path, "/proc/sys/kernel/random/boot_id")) path = boot;
    if (log_fd >= 0 && (flags & O_CREAT) && is_ours_path(path) && access(path, F_OK))
        keep('C', 0, 0, 0, path, strlen(path));
    return REAL(open64)(path, flags, mode);
}
int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
    va_end(list);
    return open64(path, flags, mode);
}

/* A second name for a file that is about to lose its own. */
static void link_saved(const char *path, char *link_path, size_t size) {
    static uint64_t links;
    snprintf(link_path, size, "%s/%llu-%d", saved, (unsigned long long)__atomic_add_fetch(&links, 1, __ATOMIC_SEQ_CST), getpid());
    if (link(path, link_path)) link_path[0] = 0;
}

int rename(const char *old, const char *new) {
    if (log_fd >= 0 && is_ours_path(new)) {
        char payload[3 * 4096], link_path[4096];
        link_saved(new, link_path, sizeof link_path);
        int length = snprintf(payload, sizeof payload, "%s%c%s%c%s", old, 0, new, 0, link_path);
        keep('R', 0, 0, 0, payload, length);
    }
    return REAL(rename)(old, new);
}

int unlink(const char *path) {
    if (log_fd >= 0 && is_ours_path(path)) {
        char payload[2 * 4096], link_path[4096];
        link_saved(path, link_path, sizeof link_path);
        int length = snprintf(payload, sizeof payload, "%s%c%s", path, 0, link_path);
        keep('U', 0, 0, 0, payload, length);
    }
    return REAL(unlink)(path);
}

int mkdir(const char *path, mode_t mode) {
    if (log_fd >= 0 && is_ours_path(path)) keep('M', 0, 0, 0, path, strlen(path));
    return REAL(mkdir)(path, mode);
}

/* --- The clock --------------------------------------------------------------------------------- */

int clock_gettime(clockid_t which, struct timespec *at) {
    int result = REAL(clock_gettime)(which, at);
    if (which == CLOCK_REALTIME && control->clock_offset) {
        int64_t value = at->tv_sec * 1000000000LL + at->tv_nsec + control->clock_offset;
        at->tv_sec = value / 1000000000LL;
        at->tv_nsec = value % 1000000000LL;
    }
    return result;
}
