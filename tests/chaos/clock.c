/* A wall clock that can be changed in a running process: LD_PRELOAD this, and write nanoseconds (a signed 64-bit
   number) to the file named by CHAOS_CLOCK. Monotonic clocks are not changed, as when an administrator sets the time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset_ns;

static long long offset(void) { return offset_ns ? *offset_ns : 0; }

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("CHAOS_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset_ns = mapped;
    close(file);
}

static void move(struct timespec *when, long long by) {
    long long seconds = by / 1000000000, rest = when->tv_nsec + by % 1000000000;
    if (rest < 0) { rest += 1000000000; seconds -= 1; }
    if (rest >= 1000000000) { rest -= 1000000000; seconds += 1; }
    when->tv_sec += seconds;
    when->tv_nsec = rest;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(now, offset());
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

/* The kernel compares with its own clock, so a deadline read from ours goes back by as much. */
int sem_timedwait(sem_t *semaphore, const struct timespec *deadline) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = *deadline;
    move(&moved, -offset());
    return real(semaphore, &moved);
}
