/* Sockets and their options: a socket of the host takes over those of the pod's own, which it replaces. */
#include "sockets.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
enum {
  SNDBUF_LOCK = 1,
  RCVBUF_LOCK = 2,
  TCP_CLOSED = 7,
  MAX_OPTION = 16,
  LISTENERS_KNOWN = 16,
  INHERITED_LIMIT = 100, /* milliseconds for which the options of a listening socket are not read again */
};

struct option {
  int level, name;
};

static const struct option copied[] = {
    {SOL_SOCKET, SO_REUSEADDR},    {SOL_SOCKET, SO_KEEPALIVE},       {SOL_SOCKET, SO_OOBINLINE},
    {SOL_SOCKET, SO_PRIORITY},     {SOL_SOCKET, SO_RCVLOWAT},        {SOL_SOCKET, SO_LINGER},
    {SOL_SOCKET, SO_RCVTIMEO},     {SOL_SOCKET, SO_SNDTIMEO},        {SOL_SOCKET, SO_MAX_PACING_RATE},
    {SOL_SOCKET, SO_ZEROCOPY},     {IPPROTO_TCP, TCP_NODELAY},       {IPPROTO_TCP, TCP_CORK},
    {IPPROTO_TCP, TCP_KEEPIDLE},   {IPPROTO_TCP, TCP_KEEPINTVL},     {IPPROTO_TCP, TCP_KEEPCNT},
    {IPPROTO_TCP, TCP_SYNCNT},     {IPPROTO_TCP, TCP_LINGER2},       {IPPROTO_TCP, TCP_USER_TIMEOUT},
    {IPPROTO_TCP, TCP_CONGESTION}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT}, {IPPROTO_IP, IP_TOS},
    {IPPROTO_IP, IP_TTL},
};
static const struct option copied_of_ipv6[] = {
    {IPPROTO_IPV6, IPV6_V6ONLY}, {IPPROTO_IPV6, IPV6_UNICAST_HOPS}, {IPPROTO_IPV6, IPV6_TCLASS}};

enum { COPIED = sizeof copied / sizeof *copied, COPIED_OF_IPV6 = sizeof copied_of_ipv6 / sizeof *copied_of_ipv6 };

int get_option(int fd, int level, int name) {
  int value;
  socklen_t size = sizeof value;
  return getsockopt(fd, level, name, &value, &size) ? -1 : value;
}

int family_of(int fd) { return get_option(fd, SOL_SOCKET, SO_DOMAIN); }

/* The protocol of a stream socket of IPv4 or IPv6; -1 if it is none. */
static int stream_protocol(int fd, int *family) {
  int protocol = get_option(fd, SOL_SOCKET, SO_PROTOCOL);
  if (protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP) return -1;
  *family = family_of(fd);
  return *family == AF_INET || *family == AF_INET6 ? protocol : -1;
}

bool is_tcp(int fd, int *family) { return stream_protocol(fd, family) == IPPROTO_TCP; }

bool is_listener(int fd, int *family) {
  int protocol = stream_protocol(fd, family);
  return protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
}

int tcp_state(int fd) {
  uint8_t state;
  socklen_t size = sizeof state;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &size) ? TCP_CLOSED : state;
}

uint32_t queue_length(int listener) {
  struct tcp_info info = {0};
  socklen_t size = sizeof info;
  return getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &size) ? 0 : info.tcpi_unacked;
}

static uint64_t get_cookie(int fd, int name) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return getsockopt(fd, SOL_SOCKET, name, &cookie, &size) ? 0 : cookie;
}

uint64_t socket_cookie(int fd) { return get_cookie(fd, SO_COOKIE); }

uint64_t netns_cookie(int fd) { return get_cookie(fd, SO_NETNS_COOKIE); }

uint64_t timeout_ms(int fd, int option) {
  struct timeval time = {0};
  socklen_t size = sizeof time;
  if (getsockopt(fd, SOL_SOCKET, option, &time, &size)) return 0;
  return (uint64_t)time.tv_sec * 1000 + ((uint64_t)time.tv_usec + 999) / 1000;
}

bool can_be_copied(int fd) {
  char device[16] = "";
  socklen_t size = sizeof device;
  getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, &size);
  return !device[0] && get_option(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT) <= 0;
}

/* The options of a socket; a size of 0: this kernel does not have that one. */
struct options {
  struct {
    char value[MAX_OPTION];
    socklen_t size;
  } each[COPIED + COPIED_OF_IPV6];
  int send_buffer, receive_buffer; /* -1: the application has not set it */
};

static const struct option *numbered(size_t i) { return i < COPIED ? &copied[i] : &copied_of_ipv6[i - COPIED]; }

static size_t options_of(int family) { return family == AF_INET6 ? COPIED + COPIED_OF_IPV6 : COPIED; }

static void read_options(int fd, int family, struct options *options) {
  memset(options, 0, sizeof *options);
  for (size_t i = 0; i < options_of(family); i++) {
    socklen_t size = MAX_OPTION;
    bool failed = getsockopt(fd, numbered(i)->level, numbered(i)->name, options->each[i].value, &size);
    options->each[i].size = failed ? 0 : size;
  }
  int locked = get_option(fd, SOL_SOCKET, SO_BUF_LOCK);
  options->send_buffer = locked > 0 && locked & SNDBUF_LOCK ? get_option(fd, SOL_SOCKET, SO_SNDBUF) : -1;
  options->receive_buffer = locked > 0 && locked & RCVBUF_LOCK ? get_option(fd, SOL_SOCKET, SO_RCVBUF) : -1;
}

/* What a new socket of the host has, as read when the first one was made. */
static const struct options *defaults_of(int family) {
  static struct options of_ipv4, of_ipv6;
  struct options *defaults = family == AF_INET6 ? &of_ipv6 : &of_ipv4;
  if (defaults->each[0].size) return defaults;
  int fresh = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fresh < 0) return defaults; /* nothing is known, so every option is set */
  read_options(fresh, family, defaults);
  close(fresh);
  return defaults;
}

static bool set_buffer(int fd, int name, int size) {
  int half = size / 2; /* the kernel doubles what it is given */
  return size < 0 || setsockopt(fd, SOL_SOCKET, name, &half, sizeof half) == 0;
}

static bool is_nodelay(const struct option *option) {
  return option->level == IPPROTO_TCP && option->name == TCP_NODELAY;
}

static bool is_linger(const struct option *option) { return option->level == SOL_SOCKET && option->name == SO_LINGER; }

/* ``is_accepted``: our own listener, which has TCP_NODELAY and SO_LINGER (see ../server.py), has handed these down. */
static bool set_options(int fd, int family, const struct options *wanted, bool is_accepted) {
  const struct options *defaults = defaults_of(family);
  bool done = true;
  for (size_t i = 0; i < options_of(family); i++) {
    const char *value = wanted->each[i].value;
    bool is_there = memcmp(value, defaults->each[i].value, MAX_OPTION) == 0;
    if (is_accepted && is_nodelay(numbered(i))) is_there = value[0] != 0;
    if (is_accepted && is_linger(numbered(i))) is_there = false;
    if (wanted->each[i].size && !is_there)
      done &= setsockopt(fd, numbered(i)->level, numbered(i)->name, value, wanted->each[i].size) == 0;
  }
  done &= set_buffer(fd, SO_SNDBUF, wanted->send_buffer);
  return done & set_buffer(fd, SO_RCVBUF, wanted->receive_buffer);
}

bool copy_options(int from, int to, int family) {
  struct options options;
  read_options(from, family, &options);
  return set_options(to, family, &options, false);
}

void inherit_options(int listener, uint64_t cookie, int accepted) {
  static struct {
    uint64_t cookie, until;
    struct options options;
  } known[LISTENERS_KNOWN], *found;
  found = &known[cookie % LISTENERS_KNOWN];
  if (found->cookie != cookie || now_ms() >= found->until) {
    read_options(listener, AF_INET, &found->options);
    found->cookie = cookie;
    found->until = now_ms() + INHERITED_LIMIT;
  }
  set_options(accepted, AF_INET, &found->options, true);
}

void set_blocking(int fd, bool blocking) {
  fcntl(fd, F_SETFL, blocking ? 0 : O_NONBLOCK); /* no other flag of it can be changed, or is ever set */
}

void acknowledge(int fd) { setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &(int){1}, sizeof(int)); }

void set_linger(int fd, bool resets) {
  struct linger at_once = {.l_onoff = resets};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void reset(int fd) {
  set_linger(fd, true);
  close(fd);
}
