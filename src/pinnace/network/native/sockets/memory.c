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

enum { MAX_FULL = 256 };

struct memory *memory;

void count(enum counter counter) { memory->counters[counter]++; }

static struct name *bucket(uint64_t cookie) { return &memory->names[cookie % (MAX_NAMES / WAYS) * WAYS]; }

/* sock_diag(7) */
bool is_connected(const struct endpoint *local, const struct endpoint *peer, uint64_t cookie) {
  static int netlink = -1;
  if (netlink < 0) netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  struct {
    struct nlmsghdr header;
    struct inet_diag_req_v2 about;
  } request = {
      .header = {.nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST},
      .about = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = UINT32_MAX},
  };
  bool both_v4 = is_v4(local) && is_v4(peer);
  struct inet_diag_sockid *id = &request.about.id;
  request.about.sdiag_family = both_v4 ? AF_INET : AF_INET6;
  memcpy(id->idiag_src, local->ip.s6_addr + (both_v4 ? 12 : 0), both_v4 ? 4 : 16);
  memcpy(id->idiag_dst, peer->ip.s6_addr + (both_v4 ? 12 : 0), both_v4 ? 4 : 16);
  id->idiag_sport = htons(local->port);
  id->idiag_dport = htons(peer->port);
  id->idiag_cookie[0] = (uint32_t)cookie;
  id->idiag_cookie[1] = (uint32_t)(cookie >> 32);
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

static bool exists(const struct name *name) { return is_connected(&name->real_local, &name->real_peer, name->cookie); }

static struct name *unused_name(struct name *first, uint64_t cookie) {
  for (int i = 0; i < WAYS; i++)
    if (!first[i].cookie || first[i].cookie == cookie) return &first[i];
  return NULL;
}

/* Where the last free place was taken: connections that are over make room there before the next one needs it. */
static struct name *full[MAX_FULL];
static int full_count;

static void clean(struct name *first) {
  for (int i = 0; i < WAYS; i++)
    if (first[i].cookie && !exists(&first[i])) first[i].cookie = 0;
}

void clean_names(void) {
  while (full_count) clean(full[--full_count]);
}

/* If there is no room even then, it takes the place of the oldest, more or less. */
void add_name(const struct name *name) {
  struct name *first = bucket(name->cookie), *place = unused_name(first, name->cookie);
  if (!place) {
    clean(first);
    place = unused_name(first, name->cookie);
  }
  *(place ? place : &first[memory->turn++ % WAYS]) = *name;
  if (full_count < MAX_FULL && !unused_name(first, 0)) {
    full[full_count++] = first;
    tick_soon();
  }
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
