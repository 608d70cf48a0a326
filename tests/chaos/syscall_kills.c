/* Ends a process right after the k-th call that changes the disk.

   CHAOS_KILL names a file of two 64-bit numbers, mapped here: how many calls are left until then (0: no matter how
   many), and the signal that ends the process. Loaded before libc by LD_PRELOAD, it sees Python's calls and SQLite's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static volatile int64_t *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CHAOS_KILL");
    int file = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED)
        control = found;
    close(file);
}

static void count(void)
{
    if (control != NULL && control[0] > 0 && __sync_sub_and_fetch(&control[0], 1) == 0)
        kill(getpid(), (int)control[1]);
}

#define COUNTED(result, name, declared, given)                      \
    result name declared                                            \
    {                                                               \
        static result(*real) declared;                              \
        if (real == NULL)                                           \
            real = (result(*) declared)dlsym(RTLD_NEXT, #name);     \
        result found = real given;                                  \
        count();                                                    \
        return found;                                               \
    }

COUNTED(ssize_t, pwrite, (int file, const void *data, size_t n, off_t at), (file, data, n, at))
COUNTED(ssize_t, pwrite64, (int file, const void *data, size_t n, off64_t at), (file, data, n, at))
COUNTED(int, fsync, (int file), (file))
COUNTED(int, fdatasync, (int file), (file))
COUNTED(int, ftruncate, (int file, off_t length), (file, length))
COUNTED(int, ftruncate64, (int file, off64_t length), (file, length))
COUNTED(int, rename, (const char *from, const char *to), (from, to))
COUNTED(int, unlink, (const char *path), (path))
COUNTED(int, mkdir, (const char *path, mode_t mode), (path, mode))
