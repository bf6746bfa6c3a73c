/* The server: what it is told by Python, and its loop. See ../server.py for the other end of the control socket. */
#include "sockets.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { PODS_KNOWN = 4096, MAX_RIGHTS = 2 };
enum kind { NOTIFICATIONS = 'N', PEER = 'P', SERVICES = 'S', WANT = 'W', JOIN = 'J' };

struct message {
  uint8_t kind, unused[3];
  uint32_t number; /* a key, or the index of a node */
  uint32_t ip;
  uint32_t port;
};

struct node node;
uint64_t host_netns;

static struct {
  uint64_t netns;
  uint32_t ip;
} pods[PODS_KNOWN];

/* The user namespace of the node, to which the networks of its pods belong. */
static uint64_t nodes_owner(void) {
  static uint64_t owner;
  int fd = owner ? -1 : take_fabric_socket();
  if (fd >= 0) {
    owner = owner_of_network(fd);
    close(fd);
  }
  return owner;
}

uint32_t pod_of(pid_t pid, int own, uint64_t netns) {
  if (netns == host_netns) return 0;
  if (pods[netns % PODS_KNOWN].netns != netns) {
    /* In a namespace that a process has made itself, it can have any address: that would be another pod's. */
    if (!is_in_network_of(pid, own) || owner_of_network(own) != nodes_owner()) return 0;
    uint32_t ip = local_address_in(pid, &node.own_pods);
    if (!ip) return 0; /* a namespace that the process has made itself, or a process that has ended */
    pods[netns % PODS_KNOWN].netns = netns;
    pods[netns % PODS_KNOWN].ip = ip;
  }
  return pods[netns % PODS_KNOWN].ip;
}

static bool tell(struct message about, const int *descriptors, size_t count) {
  char control[CMSG_SPACE(MAX_RIGHTS * sizeof(int))] = {0};
  struct iovec data = {&about, sizeof about};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
  if (count) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights =
        (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof(int))};
    memcpy(CMSG_DATA(rights), descriptors, count * sizeof(int));
  }
  return sendmsg(node.control, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void want_peer(uint32_t index) { tell((struct message){.kind = WANT, .number = index}, NULL, 0); }

static struct pair { /* connections that Python had no room for */
  struct pair *next;
  int both[2];
} *unsent;

static bool send_pair(const int both[2]) {
  if (!tell((struct message){.kind = JOIN}, both, 2)) return false;
  close(both[0]);
  close(both[1]);
  return true;
}

void splice_in_python(int one, int other) {
  struct pair *pair, found = {.both = {one, other}};
  if (send_pair(found.both)) return;
  if ((pair = malloc(sizeof *pair))) {
    found.next = unsent;
    *pair = found;
    unsent = pair;
  } else {
    reset(one);
    reset(other);
  }
}

static void send_unsent(void) {
  for (struct pair *pair; (pair = unsent) && send_pair(pair->both);) {
    unsent = pair->next;
    free(pair);
  }
}

static void obey(struct watch *watch, uint32_t events) {
  (void)events;
  struct message about = {0};
  char control[CMSG_SPACE(sizeof(int))];
  struct iovec data = {&about, sizeof about};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(watch->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != sizeof about) return;
  struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
  int fd = -1;
  if (rights && rights->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  switch (about.kind) {
    case NOTIFICATIONS:
      if (fd >= 0) source_add(about.number, fd);
      break;
    case PEER: peer_found(about.number, about.ip, (uint16_t)about.port); break;
    case SERVICES:
      if (fd >= 0) services_changed(fd);
      break;
    default: break;
  }
}

static bool tick(uint64_t now) {
  memory->ticks++;
  send_unsent();
  clean_names();
  bool is_busy = accepting_tick(now);
  return connecting_tick(now) || is_busy || unsent;
}

const char *const source_checksum = SOURCE_CHECKSUM; /* see c_library.py */

size_t memory_size(void) { return sizeof(struct memory); }

/* Serve for ever. ``shared`` is memory_size bytes that outlive this process. */
void serve(struct memory *shared, const struct node *about) {
  static struct watch control;
  int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  host_netns = netns_cookie(own);
  close(own);
  memory = shared;
  node = *about;
  srandom((unsigned)now_ms());
  signal(SIGPIPE, SIG_IGN);
  loop_init();
  calls_init();
  accepting_init();
  watch_add(&control, node.control, EPOLLIN, obey);
  loop_run(tick);
}
