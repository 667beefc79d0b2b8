/* Preloaded into a daemon: fdatasync, fsync and pread fail for the files that the file of MQBROKER_FAILING_CALLS names;
 * an fdatasync by the kernel's own queue is an fdatasync too, and is told to have failed when it is over.
 *
 * That has one line: the name of a call, and a part of the paths it fails for. None, and nothing fails. Each failure
 * adds a line to the file of that name with .hits at its end. Where the name is hanging_fdatasync, an fdatasync of a
 * thread does not end before that file is gone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails(const char *call, int fd)
{
    char name[32], part[256], link[64], path[4096], hits[4096];
    const char *control = getenv("MQBROKER_FAILING_CALLS");
    FILE *file = control ? fopen(control, "re") : NULL;
    if (!file)
        return 0;
    int found = fscanf(file, "%31s %255s", name, part);
    fclose(file);
    if (found != 2 || strcmp(name, call))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    if (!strstr(path, part))
        return 0;
    snprintf(hits, sizeof hits, "%s.hits", control);
    file = fopen(hits, "ae");
    if (file) {
        fprintf(file, "%s %s\n", call, path);
        fclose(file);
    }
    errno = EIO;
    return 1;
}

/* The request of the queue that is to fail; there is one at a time. */
static __u64 failing_request;

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long arguments[6];
    va_list list;
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_io_submit) {
        struct iocb *request = ((struct iocb **)arguments[2])[0];
        failing_request = fails("fdatasync", request->aio_fildes) ? request->aio_data : 0;
    }
    long result = next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    if (number == SYS_io_getevents)
        for (long i = 0; i < result; i++) {
            struct io_event *event = &((struct io_event *)arguments[3])[i];
            if (failing_request && event->data == failing_request)
                event->res = -EIO;
        }
    return result;
}

int fdatasync(int fd)
{
    if (fails("hanging_fdatasync", fd))
        while (fails("hanging_fdatasync", fd))
            usleep(10000);
    return fails("fdatasync", fd) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    return fails("fsync", fd) ? -1 : (int)syscall(SYS_fsync, fd);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    return fails("pread", fd) ? -1 : syscall(SYS_pread64, fd, data, size, offset);
}
