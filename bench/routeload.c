/* Asks a name server for routes: so many connections, each with so many requests in flight, topics at random.
 *
 *     routeload PORT CONNECTIONS DEPTH COUNT TOPICS LIMIT_S
 *
 * Topics are bench-topic-000000 and on. Prints one line: answers a second, errors, latencies in microseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEPTH_MAX 1024
#define BUFFER (1 << 18)

struct connection {
    int fd;
    int in_flight;
    size_t used;
    unsigned next;
    double began[DEPTH_MAX];
    unsigned char buffer[BUFFER];
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "routeload: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static uint64_t seed = 88172645463325252ULL;
static unsigned at_random(unsigned below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)(seed % below);
}

static size_t request(unsigned char *to, unsigned opaque, unsigned topic) {
    char *header = (char *)to + 8;
    int n = sprintf(header,
        "{\"code\":105,\"extFields\":{\"topic\":\"bench-topic-%06u\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%u,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}", topic, opaque);
    *(uint32_t *)to = htonl(n + 4);
    *(uint32_t *)(to + 4) = htonl(n);
    return n + 8;
}

static void ask(struct connection *c, int count, unsigned topics) {
    unsigned char out[DEPTH_MAX * 256];
    size_t size = 0, sent = 0;
    for (int i = 0; i < count; i++) {
        unsigned slot = c->next++ % DEPTH_MAX;
        c->began[slot] = now();
        size += request(out + size, slot, at_random(topics));
    }
    c->in_flight += count;
    while (sent < size) {
        ssize_t n = write(c->fd, out + sent, size - sent);
        if (n < 0 && errno != EINTR) fail("write");
        sent += n > 0 ? n : 0;
    }
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "usage: routeload PORT CONNECTIONS DEPTH COUNT TOPICS LIMIT_S\n"), 2;
    int port = atoi(argv[1]), conns = atoi(argv[2]), depth = atoi(argv[3]);
    long count = atol(argv[4]), asked = 0, answered = 0, errors = 0, bytes = 0;
    unsigned topics = atoi(argv[5]);
    double limit = atof(argv[6]);
    if (conns < 1 || conns > 256 || depth < 1 || depth > DEPTH_MAX || count < 1 || topics < 1) return 2;
    struct connection *all = calloc(conns, sizeof *all);
    struct pollfd *polls = calloc(conns, sizeof *polls);
    float *latencies = calloc(count, sizeof *latencies);
    if (!all || !polls || !latencies) fail("memory");
    for (int i = 0; i < conns; i++) {
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
        int one = 1;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        all[i].fd = polls[i].fd = socket(AF_INET, SOCK_STREAM, 0);
        polls[i].events = POLLIN;
        if (connect(all[i].fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    double began = now();
    for (int i = 0; i < conns; i++) {
        int first = count - asked < depth ? (int)(count - asked) : depth;
        asked += first;
        if (first) ask(&all[i], first, topics);
    }
    while (answered < count) {
        if (now() - began > limit) return fprintf(stderr, "routeload: not over after %.0f s\n", limit), 1;
        if (poll(polls, conns, 1000) < 0 && errno != EINTR) fail("poll");
        for (int i = 0; i < conns; i++) {
            struct connection *c = &all[i];
            if (!polls[i].revents) continue;
            ssize_t n = read(c->fd, c->buffer + c->used, BUFFER - c->used);
            if (n <= 0) fail("read");
            c->used += n;
            size_t at = 0;
            int got = 0;
            double t = now();
            while (c->used - at >= 8) {
                uint32_t length = ntohl(*(uint32_t *)(c->buffer + at));
                if (length > BUFFER - 4) fail("an answer that is too long");
                if (c->used - at < length + 4) break;
                uint32_t header = ntohl(*(uint32_t *)(c->buffer + at + 4)) & 0xffffff;
                char text[512] = "";
                memcpy(text, c->buffer + at + 8, header < 511 ? header : 511);
                char *opaque = strstr(text, "\"opaque\":");
                if (!strstr(text, "\"code\":0,") || length - 4 - header < 50) errors++;
                if (opaque) latencies[answered] = (float)((t - c->began[atoi(opaque + 9) % DEPTH_MAX]) * 1e6);
                bytes += length + 4;
                answered++, got++;
                at += length + 4;
            }
            memmove(c->buffer, c->buffer + at, c->used - at);
            c->used -= at;
            c->in_flight -= got;
            int more = count - asked < got ? (int)(count - asked) : got;
            asked += more;
            if (more) ask(c, more, topics);
        }
    }
    double took = now() - began;
    qsort(latencies, count, sizeof *latencies, by_size);
    printf("routes %.0f msg/s %ld bytes errors=%ld us: p50=%.0f p99=%.0f p99.9=%.0f max=%.0f\n", count / took, bytes,
        errors, latencies[count / 2], latencies[count * 99 / 100], latencies[(long)(count * 0.999)],
        latencies[count - 1]);
    return errors != 0;
}
