/* Maps a file, for tests/data.rs: in Rust, mmap needs unsafe code, which this workspace forbids.
 *
 *   mmap write PATH OFFSET TEXT   writes TEXT through a shared mapping of PATH and calls msync
 *   mmap leave PATH OFFSET TEXT   the same without msync
 *   mmap read PATH OFFSET LEN     prints LEN bytes of a mapping
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const char *what) {
    perror(what);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 5) return fputs("mmap write|leave|read PATH OFFSET TEXT|LEN\n", stderr), 2;
    int writes = strcmp(argv[1], "read") != 0;
    size_t offset = strtoul(argv[3], NULL, 10);
    size_t len = writes ? strlen(argv[4]) : strtoul(argv[4], NULL, 10);
    int fd = open(argv[2], writes ? O_RDWR : O_RDONLY);
    if (fd < 0) return fail("open");
    struct stat st;
    if (fstat(fd, &st)) return fail("fstat");
    if (offset + len > (size_t)st.st_size) return fputs("beyond the end of the file\n", stderr), 2;
    char *map = mmap(NULL, st.st_size, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return fail("mmap");
    /* From here on, only the mapping keeps the file in use. */
    if (close(fd)) return fail("close");
    if (writes) {
        memcpy(map + offset, argv[4], len);
        if (strcmp(argv[1], "write") == 0 && msync(map, st.st_size, MS_SYNC)) return fail("msync");
    } else {
        fwrite(map + offset, 1, len, stdout);
    }
    if (munmap(map, st.st_size)) return fail("munmap");
    return 0;
}
