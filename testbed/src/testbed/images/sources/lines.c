/*
 * Lines over TCP: `lines serve PORT` gives back what it gets, `lines ask HOST PORT COUNT` makes connections one after
 * another and expects its line back on each. Compiled with glibc and with musl.
 */
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void echo(int fd) {
  char data[1 << 14];
  ssize_t size;

  while ((size = read(fd, data, sizeof data)) > 0)
    if (write(fd, data, (size_t)size) != size) break;
}

static int resolve(const char *host, const char *port, struct addrinfo **found) {
  struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_family = AF_INET};

  if (!host) wanted.ai_flags = AI_PASSIVE;
  return getaddrinfo(host, port, &wanted, found);
}

static int serve(const char *port) {
  struct addrinfo *own;
  int one = 1;

  if (resolve(NULL, port, &own)) return 1;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, own->ai_addr, own->ai_addrlen) || listen(listener, 100)) {
    perror("lines");
    return 1;
  }
  signal(SIGCHLD, SIG_IGN);
  for (;;) {
    int fd = accept(listener, NULL, NULL);

    if (fd >= 0 && !fork()) {
      close(listener);
      echo(fd);
      _exit(0);
    }
    if (fd >= 0) close(fd);
  }
}

static int ask(const char *host, const char *port, int count) {
  struct addrinfo *there;
  char sent[64], got[64];

  if (resolve(host, port, &there)) {
    fprintf(stderr, "lines: %s is unknown\n", host);
    return 1;
  }
  for (int i = 0; i < count; i++) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int size = snprintf(sent, sizeof sent, "line %d\n", i);

    if (connect(fd, there->ai_addr, there->ai_addrlen) || write(fd, sent, (size_t)size) != size) {
      perror("lines");
      return 1;
    }
    for (int have = 0; have < size;) {
      ssize_t more = read(fd, got + have, (size_t)(size - have));

      if (more <= 0 || memcmp(got + have, sent + have, (size_t)more)) {
        fprintf(stderr, "lines: line %d came back wrong\n", i);
        return 1;
      }
      have += (int)more;
    }
    close(fd);
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && !strcmp(argv[1], "serve")) return serve(argv[2]);
  if (argc == 5 && !strcmp(argv[1], "ask")) return ask(argv[2], argv[3], atoi(argv[4]));
  fprintf(stderr, "usage: lines serve PORT | lines ask HOST PORT COUNT\n");
  return 2;
}
