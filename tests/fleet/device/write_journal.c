/* Preloaded into a process, writes down every change of files in one folder, in order.
 *
 * WATCHED  the folder; JOURNAL  where to write. A record is: operation (1 byte), length
 * of the path (4 bytes), offset (8), length of the data (8), path, data.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int journal = -1;

/* Return a path inside the folder ("" is the folder), or nothing for any other. */
static const char *watched(const char *path) {
    const char *folder = getenv("WATCHED");
    size_t prefix = folder ? strlen(folder) : 0;
    if (!prefix || strncmp(path, folder, prefix) != 0 || strstr(path, "-shm"))
        return NULL;
    return path[prefix] == '/' ? path + prefix + 1 : path + prefix;
}

static void put(const void *data, size_t length) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    if (real(journal, data, length) != (ssize_t)length) _exit(99);
}

static void record(char operation, const char *name, const void *data,
                   uint64_t length, uint64_t offset) {
    if (journal < 0)
        journal = open(getenv("JOURNAL"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    uint32_t name_length = strlen(name);
    put(&operation, 1);
    put(&name_length, 4);
    put(&offset, 8);
    put(&length, 8);
    put(name, name_length);
    if (length) put(data, length);
}

static void note(char operation, int fd, const void *data, uint64_t length,
                 uint64_t offset) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return;
    path[size] = 0;
    const char *name = watched(path);
    if (name) record(operation, name, data, length, offset);
}

#define NEXT(name) \
    static __typeof__(name) *real; \
    if (!real) real = dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    NEXT(pwrite);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0) note('w', fd, data, done, offset);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    NEXT(pwrite64);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0) note('w', fd, data, done, offset);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(write);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t done = real(fd, data, size);
    if (done > 0 && offset >= 0) note('w', fd, data, done, offset);
    return done;
}

int ftruncate(int fd, off_t size) {
    NEXT(ftruncate);
    int result = real(fd, size);
    if (result == 0) note('t', fd, NULL, 0, size);
    return result;
}

int ftruncate64(int fd, off64_t size) {
    NEXT(ftruncate64);
    int result = real(fd, size);
    if (result == 0) note('t', fd, NULL, 0, size);
    return result;
}

int fsync(int fd) {
    NEXT(fsync);
    int result = real(fd);
    if (result == 0) note('s', fd, NULL, 0, 0);
    return result;
}

int fdatasync(int fd) {
    NEXT(fdatasync);
    int result = real(fd);
    if (result == 0) note('s', fd, NULL, 0, 0);
    return result;
}

int unlink(const char *path) {
    NEXT(unlink);
    int result = real(path);
    const char *name = watched(path);
    if (result == 0 && name) record('u', name, NULL, 0, 0);
    return result;
}
