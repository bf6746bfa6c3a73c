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
enum { SNDBUF_LOCK = 1, RCVBUF_LOCK = 2, TCP_CLOSED = 7, MAX_OPTION = 16 };

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

/* The protocol of a stream socket of IPv4 or IPv6; -1 if it is none. */
static int stream_protocol(int fd, int *family) {
  *family = get_option(fd, SOL_SOCKET, SO_DOMAIN);
  bool is_stream = (*family == AF_INET || *family == AF_INET6) && get_option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM;
  return is_stream ? get_option(fd, SOL_SOCKET, SO_PROTOCOL) : -1;
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

/* What a new socket of the host has, as read when the first one was made. */
struct defaults {
  bool known;
  char values[COPIED + COPIED_OF_IPV6][MAX_OPTION];
};

static struct defaults *defaults_of(int family, int fd) {
  static struct defaults of_ipv4, of_ipv6;
  struct defaults *defaults = family == AF_INET6 ? &of_ipv6 : &of_ipv4;
  int fresh = defaults->known ? -1 : socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (size_t i = 0; !defaults->known && i < COPIED + (family == AF_INET6 ? COPIED_OF_IPV6 : 0); i++) {
    const struct option *option = i < COPIED ? &copied[i] : &copied_of_ipv6[i - COPIED];
    socklen_t size = MAX_OPTION;
    getsockopt(fresh < 0 ? fd : fresh, option->level, option->name, defaults->values[i], &size);
  }
  defaults->known = true;
  if (fresh >= 0) close(fresh);
  return defaults;
}

static bool copy_option(int from, int to, const struct option *option, const char *present) {
  char wanted[MAX_OPTION] = "";
  socklen_t size = sizeof wanted;
  if (getsockopt(from, option->level, option->name, wanted, &size)) return true; /* this kernel has none */
  return memcmp(wanted, present, sizeof wanted) == 0 || setsockopt(to, option->level, option->name, wanted, size) == 0;
}

static bool copy_buffer(int from, int to, int name) {
  int size = get_option(from, SOL_SOCKET, name) / 2; /* the kernel doubles what it is given */
  return setsockopt(to, SOL_SOCKET, name, &size, sizeof size) == 0;
}

bool copy_options(int from, int to) {
  bool done = true, both_of_ipv6 = get_option(from, SOL_SOCKET, SO_DOMAIN) == AF_INET6 &&
                                   get_option(to, SOL_SOCKET, SO_DOMAIN) == AF_INET6;
  struct defaults *defaults = defaults_of(both_of_ipv6 ? AF_INET6 : AF_INET, to);
  for (size_t i = 0; i < COPIED; i++) done &= copy_option(from, to, &copied[i], defaults->values[i]);
  for (size_t i = 0; both_of_ipv6 && i < COPIED_OF_IPV6; i++)
    done &= copy_option(from, to, &copied_of_ipv6[i], defaults->values[COPIED + i]);
  int set_by_application = get_option(from, SOL_SOCKET, SO_BUF_LOCK);
  if (set_by_application > 0 && set_by_application & SNDBUF_LOCK) done &= copy_buffer(from, to, SO_SNDBUF);
  if (set_by_application > 0 && set_by_application & RCVBUF_LOCK) done &= copy_buffer(from, to, SO_RCVBUF);
  return done;
}

void set_blocking(int fd, bool blocking) {
  int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

void set_nodelay(int fd, int value) { setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value); }

void reset(int fd) {
  struct linger at_once = {.l_onoff = 1};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(fd);
}
