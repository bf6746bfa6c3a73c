/* Requests and responses of 200 bytes over blocking sockets, and the CPU time that the whole machine spends on them.
 *   rr serve-tcp|serve-udp PORT              answer; over TCP one connection after another
 *   rr tcp|connect|udp ADDRESS PORT COUNT    measure COUNT requests, each after the response to the one before
 *   rr cpu COMMAND [ARGUMENT...]             run a command, then print the CPU time of the machine in a line of its own
 *   rr on PROCESSOR ...                      the same on one processor, also in a container, to which runc gives all
 * `tcp` uses one connection; `connect` opens and closes one for every request. The result is a line of JSON, in
 * microseconds. A tenth more requests come first and are not measured. */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 200 };

/* Seconds that all processors were busy since boot: user, nice, system, irq and softirq of the first line. */
static double machine_cpu(void) {
  unsigned long user, nice, system, irq, softirq;
  FILE *stat = fopen("/proc/stat", "r");
  if (!stat || fscanf(stat, "cpu %lu %lu %lu %*u %*u %lu %lu", &user, &nice, &system, &irq, &softirq) != 5)
    err(1, "/proc/stat");
  fclose(stat);
  return (double)(user + nice + system + irq + softirq) / (double)sysconf(_SC_CLK_TCK);
}

static void pin(int processor) {
  if (syscall(SYS_sched_setaffinity, 0, sizeof(long), &(unsigned long){1UL << processor}))
    err(1, "processor %d", processor);
}

static struct sockaddr_in at(const char *address, const char *port) {
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
  if (inet_pton(AF_INET, address, &place.sin_addr) != 1) errx(2, "not an IPv4 address: %s", address);
  return place;
}

/* A socket that `use`, which is connect or bind, was called for. */
static int open_socket(int type, int (*use)(int, const struct sockaddr *, socklen_t), struct sockaddr_in place) {
  int fd = socket(AF_INET, type, 0), on = 1;
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      (type == SOCK_STREAM && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) ||
      use(fd, (const struct sockaddr *)&place, sizeof place))
    err(1, "socket");
  return fd;
}

static void serve_udp(int fd) {
  char data[SIZE];
  struct sockaddr_in peer;
  socklen_t length = sizeof peer;
  while (recvfrom(fd, data, SIZE, 0, (struct sockaddr *)&peer, &length) >= 0)
    sendto(fd, data, SIZE, 0, (struct sockaddr *)&peer, length);
  err(1, "recvfrom");
}

static void serve_tcp(int listener) {
  char data[SIZE];
  int fd, failed = listen(listener, 64);
  while (!failed && (fd = accept(listener, NULL, NULL)) >= 0) {
    while (recv(fd, data, SIZE, MSG_WAITALL) == SIZE && send(fd, data, SIZE, MSG_NOSIGNAL) == SIZE) {
    }
    close(fd);
  }
  err(1, "accept");
}

/* A datagram that is not answered within the socket's time limit is sent again; late answers have another number. */
static void exchange_datagram(int fd, char *data, int number) {
  do {
    memcpy(data, &number, sizeof number);
    if (send(fd, data, SIZE, 0) != SIZE) err(1, "datagram");
    while (recv(fd, data, SIZE, 0) == SIZE)
      if (!memcmp(data, &number, sizeof number)) return;
  } while (errno == EAGAIN);
  err(1, "datagram");
}

static double microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int ascending(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void measure(const char *mode, struct sockaddr_in server, int count) {
  char data[SIZE] = {0};
  int udp = !strcmp(mode, "udp"), each = !strcmp(mode, "connect"), type = udp ? SOCK_DGRAM : SOCK_STREAM;
  int fd = each ? -1 : open_socket(type, connect, server);
  struct timeval limit = {.tv_sec = 1};
  double cpu = 0, *times = calloc((size_t)count, sizeof *times);
  if (!times || (udp && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit))) err(1, "measure");
  for (int number = -count / 10; number < count; number++) {
    cpu = number ? cpu : machine_cpu();
    double begin = microseconds();
    if (each) fd = open_socket(type, connect, server);
    if (udp)
      exchange_datagram(fd, data, number);
    else if (send(fd, data, SIZE, MSG_NOSIGNAL) != SIZE || recv(fd, data, SIZE, MSG_WAITALL) != SIZE)
      err(1, "request");
    if (each) close(fd);
    times[number < 0 ? 0 : number] = microseconds() - begin;
  }
  cpu = machine_cpu() - cpu;
  qsort(times, (size_t)count, sizeof *times, ascending);
  printf("{\"median\": %.1f, \"p99\": %.1f, \"cpu_seconds\": %.2f}\n", times[count / 2], times[count * 99 / 100], cpu);
}

static int run(char **command) {
  int status;
  double before = machine_cpu();
  pid_t child = fork();
  if (child == 0) execvp(*command, command);
  if (child <= 0 || waitpid(child, &status, 0) < 0) err(1, "%s", *command);
  printf("{\"cpu_seconds\": %.2f}\n", machine_cpu() - before);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int count, char **words) {
  if (count > 3 && !strcmp(words[1], "on")) {
    pin(atoi(words[2]));
    count -= 2;
    words += 2;
  }
  if (count > 2 && !strcmp(words[1], "cpu")) return run(words + 2);
  if (count == 3 && !strcmp(words[1], "serve-tcp")) serve_tcp(open_socket(SOCK_STREAM, bind, at("0.0.0.0", words[2])));
  if (count == 3 && !strcmp(words[1], "serve-udp")) serve_udp(open_socket(SOCK_DGRAM, bind, at("0.0.0.0", words[2])));
  if (count != 5 || !strstr("tcp connect udp", words[1]) || atoi(words[4]) < 1)
    errx(2, "usage: rr [on PROCESSOR] serve-tcp|serve-udp PORT | tcp|connect|udp ADDRESS PORT COUNT | cpu COMMAND...");
  measure(words[1], at(words[2], words[3]), atoi(words[4]));
}
