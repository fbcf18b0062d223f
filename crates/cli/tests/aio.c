/* Writes a file by asynchronous O_DIRECT writes while other threads read it through the page cache, for
 * tests/data.rs.
 *
 *   aio PATH EPISODES   prints two counts of pages with outdated bytes after all writes of an episode have
 *                       completed: pages from read(2) at once, and pages in a mapping after two seconds
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 128, AT_ONCE = 32, READERS = 3 };

static int buffered;
static const volatile char *map;
static atomic_int stop;

static int fail(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t stamp_by_read(int page) {
    uint64_t stamp = 0;
    if (pread(buffered, &stamp, sizeof stamp, (off_t)page * PAGE) != sizeof stamp) fail("pread");
    return stamp;
}

static uint64_t stamp_in_map(int page) {
    return *(const volatile uint64_t *)(map + (size_t)page * PAGE);
}

/* One reader maps the file, the others call read(2). */
static void *reader(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    while (!stop) {
        int page = rand_r(&seed) % PAGES;
        if (arg) stamp_by_read(page);
        else stamp_in_map(page);
    }
    return NULL;
}

static void write_all(aio_context_t context, int fd, char *bytes, uint64_t stamp) {
    for (int first = 0; first < PAGES; first += AT_ONCE) {
        struct iocb blocks[AT_ONCE] = {0}, *list[AT_ONCE];
        for (int n = 0; n < AT_ONCE; n++) {
            char *page = bytes + (size_t)n * PAGE;
            for (size_t at = 0; at < PAGE; at += sizeof stamp) memcpy(page + at, &stamp, sizeof stamp);
            blocks[n].aio_lio_opcode = IOCB_CMD_PWRITE;
            blocks[n].aio_fildes = fd;
            blocks[n].aio_buf = (uintptr_t)page;
            blocks[n].aio_nbytes = PAGE;
            blocks[n].aio_offset = (int64_t)(first + n) * PAGE;
            list[n] = &blocks[n];
        }
        struct io_event events[AT_ONCE];
        if (syscall(SYS_io_submit, context, AT_ONCE, list) != AT_ONCE) fail("io_submit");
        if (syscall(SYS_io_getevents, context, AT_ONCE, AT_ONCE, events, NULL) != AT_ONCE) fail("io_getevents");
        for (int n = 0; n < AT_ONCE; n++)
            if (events[n].res != PAGE) fputs("a write failed\n", stderr), exit(1);
    }
}

static int outdated(uint64_t (*look)(int), uint64_t stamp) {
    int count = 0;
    for (int page = 0; page < PAGES; page++) count += look(page) != stamp;
    return count;
}

int main(int argc, char **argv) {
    if (argc != 3) return fputs("aio PATH EPISODES\n", stderr), 2;
    aio_context_t context = 0;
    char *bytes = aligned_alloc(PAGE, PAGE * AT_ONCE);
    int fd = open(argv[1], O_RDWR | O_CREAT | O_DIRECT, 0600);
    buffered = open(argv[1], O_RDONLY);
    if (fd < 0 || buffered < 0 || !bytes) fail("open");
    if (ftruncate(fd, (off_t)PAGE * PAGES)) fail("ftruncate");
    if (syscall(SYS_io_setup, AT_ONCE, &context)) fail("io_setup");
    map = mmap(NULL, (size_t)PAGE * PAGES, PROT_READ, MAP_SHARED, buffered, 0);
    if (map == MAP_FAILED) fail("mmap");
    int by_read = 0, in_map = 0;
    for (int episode = 0; episode < atoi(argv[2]); episode++) {
        pthread_t threads[READERS];
        stop = 0;
        for (uintptr_t n = 0; n < READERS; n++)
            if (pthread_create(&threads[n], NULL, reader, (void *)n)) fail("pthread_create");
        uint64_t stamp = 0;
        for (int round = 0; round < 3; round++) write_all(context, fd, bytes, stamp = 3 * episode + round + 1);
        stop = 1;
        for (int n = 0; n < READERS; n++) pthread_join(threads[n], NULL);
        if (episode % 2) {
            by_read += outdated(stamp_by_read, stamp);
        } else {
            int left = outdated(stamp_in_map, stamp);
            for (int wait = 0; left && wait < 20; wait++) usleep(100000), left = outdated(stamp_in_map, stamp);
            in_map += left;
        }
        /* The next episode begins with a cache that is up to date. */
        posix_fadvise(buffered, 0, 0, POSIX_FADV_DONTNEED);
    }
    printf("%d %d\n", by_read, in_map);
    return 0;
}
