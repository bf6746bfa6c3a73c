/* What outlives the server: Python makes this memory before it forks one, and the next one finds it as it was.
 *
 * A caller whose call was received and never answered would wait for ever. So the kernel writes each call right into a
 * slot here, and the next server goes on with it. The addresses that pods see are here, too. */
#include "sockets.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <string.h>

struct memory *memory;

void count(enum counter counter) { memory->counters[counter]++; }

static struct name *bucket(uint64_t cookie) { return &memory->names[cookie % (MAX_NAMES / WAYS) * WAYS]; }

/* Whether a connection of the host's is still there: sock_diag(7). */
static bool exists(const struct name *name) {
  static int netlink = -1;
  if (netlink < 0) netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  struct {
    struct nlmsghdr header;
    struct inet_diag_req_v2 about;
  } request = {
      .header = {.nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
      .about = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = UINT32_MAX},
  };
  bool both_v4 = is_v4(&name->real_local) && is_v4(&name->real_peer);
  struct inet_diag_sockid *id = &request.about.id;
  request.about.sdiag_family = both_v4 ? AF_INET : AF_INET6;
  memcpy(id->idiag_src, name->real_local.ip.s6_addr + (both_v4 ? 12 : 0), both_v4 ? 4 : 16);
  memcpy(id->idiag_dst, name->real_peer.ip.s6_addr + (both_v4 ? 12 : 0), both_v4 ? 4 : 16);
  id->idiag_sport = htons(name->real_local.port);
  id->idiag_dport = htons(name->real_peer.port);
  id->idiag_cookie[0] = (uint32_t)name->cookie;
  id->idiag_cookie[1] = (uint32_t)(name->cookie >> 32);
  union {
    struct nlmsghdr header;
    uint8_t bytes[2048];
  } reply;
  if (send(netlink, &request, sizeof request, 0) < 0) return true;
  ssize_t size = recv(netlink, &reply, sizeof reply, MSG_DONTWAIT);
  if (size < (ssize_t)NLMSG_LENGTH(sizeof(struct inet_diag_msg))) return size < 0;
  const struct inet_diag_msg *found = NLMSG_DATA(&reply.header);
  return reply.header.nlmsg_type == SOCK_DIAG_BY_FAMILY && found->idiag_state != TCP_TIME_WAIT;
}

static struct name *unused_name(struct name *first, uint64_t cookie) {
  for (int i = 0; i < WAYS; i++)
    if (!first[i].cookie || first[i].cookie == cookie) return &first[i];
  return NULL;
}

/* Those of connections that are over make room for others, and only if there are none, the oldest, more or less. */
void add_name(const struct name *name) {
  struct name *first = bucket(name->cookie), *place = unused_name(first, name->cookie);
  for (int i = 0; !place && i < WAYS; i++)
    if (!exists(&first[i])) first[i].cookie = 0;
  if (!place) place = unused_name(first, name->cookie);
  *(place ? place : &first[memory->turn++ % WAYS]) = *name;
}

void set_name(int fd, int family, const struct endpoint *local, const struct endpoint *peer) {
  struct name name = {.cookie = socket_cookie(fd), .family = family, .local = *local, .peer = *peer};
  own_address(fd, &name.real_local);
  peer_address(fd, &name.real_peer);
  add_name(&name);
}

struct name *find_name(uint64_t cookie) {
  struct name *first = bucket(cookie);
  for (int i = 0; i < WAYS; i++)
    if (first[i].cookie == cookie) return &first[i];
  return NULL;
}
