/* Sockets to knock at pods with: see accepting.c. */
#include "sockets.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
  MAX_FABRIC_SOCKETS = 128, /* that are kept ready */
  MAX_SPENT = 64,           /* knocks that are ended together */
  MAX_NEAR = 64,
  NEAR_LIMIT = 5000, /* milliseconds for which one that nobody needs is kept: it keeps the network of its pod */
};

/* --- of the node's own network, from which pods can be reached (network/netns_sockets.py) ----------------------- */

static struct watch fabric;
static void (*when_there_is_one)(void);
static int fabric_sockets[MAX_FABRIC_SOCKETS];
static int fabric_count, fabric_asked;

static void ask_for_sockets(void) {
  while (fabric_count + fabric_asked < MAX_FABRIC_SOCKETS && send(node.fabric_sockets, "?", 1, MSG_DONTWAIT) == 1)
    fabric_asked++;
}

/* Let a socket have the node's own address. The one at the node's end of pods' links is also that of connections which
 * kube-proxy masquerades: if one of them had our port, the kernel would give us another, and our knock would be a
 * stranger's. */
static bool bind_to_node(int fd) {
  struct endpoint own = v4_endpoint(node.nodes.first + node.index + 1, 0);
  struct sockaddr_in6 address;
  socklen_t size = build_address(AF_INET, &own, &address);
  int on = 1; /* the port is chosen when the socket is connected */
  return setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) == 0 &&
         bind(fd, (struct sockaddr *)&address, size) == 0;
}

static void receive_socket(struct watch *watch, uint32_t events) {
  (void)events;
  char reply, control[CMSG_SPACE(sizeof(int))];
  struct iovec data = {&reply, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(watch->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) <= 0) {
    if (errno != EAGAIN) watch_remove(watch); /* the node ends */
    return;
  }
  struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
  if (fabric_asked) fabric_asked--;
  if (!rights || rights->cmsg_type != SCM_RIGHTS) return;
  int fd;
  memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  if (fabric_count < MAX_FABRIC_SOCKETS && bind_to_node(fd))
    fabric_sockets[fabric_count++] = fd;
  else
    close(fd);
  when_there_is_one();
}

void knocking_init(void (*there_is_one)(void)) {
  when_there_is_one = there_is_one;
  watch_add(&fabric, node.fabric_sockets, EPOLLIN, receive_socket);
  ask_for_sockets();
}

/* A socket whose connection is ended, with a reset, can be used again: to make one takes two processes. */
static bool disconnect(int fd) {
  struct sockaddr disconnected = {.sa_family = AF_UNSPEC};
  return connect(fd, &disconnected, sizeof disconnected) == 0;
}

static void give_back_fabric_socket(int fd) {
  if (fabric_count < MAX_FABRIC_SOCKETS && disconnect(fd))
    fabric_sockets[fabric_count++] = fd;
  else
    close(fd);
}

int take_fabric_socket(void) {
  if (!fabric_count) end_spent();
  if (fabric_count <= MAX_FABRIC_SOCKETS / 2) ask_for_sockets();
  return fabric_count ? fabric_sockets[--fabric_count] : -1;
}

/* --- of a pod's own network: the other ends of earlier knocks --------------------------------------------------- */

static struct near {
  uint64_t listener; /* where it was accepted */
  uint64_t since;
  int fd;
} nears[MAX_NEAR];
static int near_count;

static void keep_near(uint64_t listener, int fd) {
  if (listener && near_count < MAX_NEAR && disconnect(fd))
    nears[near_count++] = (struct near){.listener = listener, .since = now_ms(), .fd = fd};
  else
    reset(fd);
}

int take_near_socket(uint64_t listener) {
  for (int i = near_count; i--;)
    if (nears[i].listener == listener) {
      int fd = nears[i].fd;
      nears[i] = nears[--near_count];
      return fd;
    }
  return -1;
}

void drop_old_near(uint64_t now) {
  for (int i = near_count; i--;)
    if (now > nears[i].since + NEAR_LIMIT) {
      close(nears[i].fd);
      nears[i] = nears[--near_count];
    }
}

/* --- knocks that have served their purpose ---------------------------------------------------------------------- */

static struct spent {
  struct knock knock;
  int accepted;
  uint64_t listener;
} spent[MAX_SPENT];
static int spent_count;

void end_spent(void) {
  while (spent_count) {
    const struct spent *this = &spent[--spent_count];
    keep_near(this->listener, this->accepted);
    if (this->knock.is_near)
      keep_near(this->listener, this->knock.fd);
    else
      give_back_fabric_socket(this->knock.fd);
  }
}

void end_later(struct knock knock, int accepted, uint64_t listener) {
  if (spent_count == MAX_SPENT) end_spent();
  spent[spent_count++] = (struct spent){.knock = knock, .accepted = accepted, .listener = listener};
  tick_soon();
}
