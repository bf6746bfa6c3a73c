/* connect(2) of pods, and the addresses that they see.
 *
 * A connection that leaves the node is made by a socket of the host, which takes the place of the pod's own when it is
 * connected. (With a socket that is not, a pod could reach the host's own addresses.) One to a pod goes to the agent of
 * its node, which is told which pod and port are wanted; after its YES every byte belongs to the two pods. Whatever
 * does not succeed, or not soon enough for a caller that does not want to wait, is left to the general path. */
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  PEER_LIMIT = 500,       /* milliseconds for a connection to a pod, until it is made on the general path */
  SHORT_PEER_LIMIT = 100, /* milliseconds for the same, if the caller does not want to wait */
  OUTSIDE_LIMIT = 20,     /* milliseconds for one to the outside whose caller does not want to wait */
  SILENT = 300,           /* milliseconds in which a node has answered nobody */
  AVOIDED = 2000,         /* milliseconds for which it is left to the general path then */
  ADDRESS_LIMIT = 5000,   /* milliseconds for which the address of a node is taken as known */
  SPARE_LIMIT = 2000,     /* milliseconds for which a connection to a node is kept ready */
  MAX_PEERS = 4096,       /* larger than any index of a node */
  MAX_UNANSWERED = 64,
};
enum path { LOCAL, BY_GENERAL_PATH, TO_OUTSIDE, TO_POD };
enum stage { ADDRESS, OUTSIDE_CONNECT, PEER_CONNECT, PEER_NONCE, PEER_ANSWER };

struct connecting {
  struct watch watch; /* of the host's socket */
  struct connecting *next, **previous;
  struct call call;
  uint64_t cookie; /* of the caller's own socket */
  enum stage stage;
  uint64_t deadline; /* 0: none */
  int fd;            /* the host's socket */
  bool spare;        /* it was a spare one */
  int family, nodelay;
  bool blocking, cloexec;
  uint32_t pod;               /* the caller's own address */
  struct endpoint wanted;     /* what it asked for */
  struct endpoint target;     /* the pod behind that */
  uint8_t buffer[DIGEST + 1]; /* what has been received of a step */
  size_t filled;
  uint8_t expected[DIGEST];
};

/* A connection to a node for the next pod that wants one there: it is connected, and its nonce may have come. */
struct spare {
  int fd;
  uint64_t made; /* 0: there is none */
};

static struct peer {
  uint32_t ip;
  uint16_t port; /* 0: not known */
  uint64_t asked, known, answered, avoided_until;
  struct spare spare;
} peers[MAX_PEERS];

static struct connecting *all;
static struct {
  uint64_t cookie;
  int answer;
} unanswered[MAX_UNANSWERED]; /* sockets that were replaced for callers that a signal interrupted in that moment */
static unsigned next_unanswered;
static uint64_t interrupted[MAX_UNANSWERED]; /* sockets of callers that a signal interrupted before */
static unsigned next_interrupted;

/* The table of Services: sorted by address and port, see services.py. */
static const struct service {
  uint32_t ip;
  uint16_t port, count;
  uint32_t first;
} *services;
static const struct backend {
  uint32_t ip;
  uint16_t port, unused;
} *backends;
static size_t services_count, backends_count, services_size;

void services_changed(int fd) {
  struct stat about;
  if (services) munmap((void *)(uintptr_t)services, services_size);
  services = NULL;
  services_count = 0;
  if (fstat(fd, &about) == 0 && about.st_size >= (off_t)sizeof *services) {
    services_size = (size_t)about.st_size;
    void *map = mmap(NULL, services_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) {
      services = map; /* the first entry says how many there are */
      services_count = services->first;
      backends = (const void *)(services + 1 + services_count);
      backends_count = (services_size - (1 + services_count) * sizeof *services) / sizeof *backends;
    }
  }
  close(fd);
}

static int compare_services(const void *wanted, const void *entry) {
  const struct service *one = wanted, *other = entry;
  if (one->ip != other->ip) return one->ip < other->ip ? -1 : 1;
  return (one->port > other->port) - (one->port < other->port);
}

static const struct service *find_service(const struct endpoint *endpoint) {
  struct service wanted = {.ip = v4(endpoint), .port = endpoint->port};
  return services_count ? bsearch(&wanted, services + 1, services_count, sizeof *services, compare_services) : NULL;
}

static enum path choose_backend(struct endpoint *target) {
  const struct service *found = find_service(target);
  if (!found || !found->count || found->first + found->count > backends_count) return BY_GENERAL_PATH;
  const struct backend *backend = &backends[found->first + (uint32_t)random() % found->count];
  if (!within(&node.pods, backend->ip)) return BY_GENERAL_PATH; /* the API is no pod */
  *target = v4_endpoint(backend->ip, backend->port);
  return TO_POD;
}

/* The path to an address. The pod behind a Service takes the Service's place. */
static enum path choose_path(struct endpoint *target) {
  const struct in6_addr *ip = &target->ip;
  if (!is_v4(target))
    return IN6_IS_ADDR_LOOPBACK(ip) || IN6_IS_ADDR_LINKLOCAL(ip) || IN6_IS_ADDR_UNSPECIFIED(ip) ||
                   IN6_IS_ADDR_MULTICAST(ip) || IN6_IS_ADDR_V4COMPAT(ip)
               ? LOCAL
               : TO_OUTSIDE;
  uint32_t address = v4(target);
  if (within(&node.services, address)) return choose_backend(target);
  if (within(&node.own_pods, address)) return LOCAL;
  if (within(&node.pods, address)) return TO_POD;
  if (within(&node.nodes, address)) return address == node.nodes.first + node.index + 1 ? LOCAL : BY_GENERAL_PATH;
  bool own = address >> 24 == 127 || address >> 24 == 0 || address >> 16 == 0xa9fe || address >> 28 >= 0xe;
  if (own) return LOCAL; /* the host's own loopback and link-local networks are not the pods' */
  return find_service(target) ? BY_GENERAL_PATH : TO_OUTSIDE; /* a Service can have addresses outside of the cluster */
}

/* --- the end of an attempt -------------------------------------------------------------------------------------- */

static void finish(struct connecting *this) {
  watch_remove(&this->watch);
  if (this->fd >= 0) close(this->fd);
  drop(&this->call);
  *this->previous = this->next;
  if (this->next) this->next->previous = this->previous;
  free_later(this);
}

static void take_general_path(struct connecting *this) {
  count(GENERAL);
  let_continue(&this->call);
  finish(this);
}

static void fail(struct connecting *this, int code) {
  answer(&this->call, -code);
  finish(this);
}

/* To the kernel a socket is connected when connect(2) has said so, not before; and only such a one can never be
 * connected again. Without this a pod could do so after a reset, by sendmsg(2) with MSG_FASTOPEN, to the host's own
 * addresses. */
static bool settle(int fd) {
  struct sockaddr_in6 address;
  socklen_t size = sizeof address;
  return getpeername(fd, (struct sockaddr *)&address, &size) == 0 &&
         (connect(fd, (struct sockaddr *)&address, size) == 0 || errno == EISCONN);
}

/* Put the host's socket in its place, and answer the call. Who does not want to wait is told that it takes a moment. */
static void put(struct connecting *this, enum counter counter) {
  int result = this->blocking ? 0 : -EINPROGRESS;
  struct endpoint local = v4_endpoint(this->pod, 0), real;
  if (own_address(this->fd, &real)) local.port = real.port;
  uint64_t cookie = socket_cookie(this->fd);
  if (!settle(this->fd)) { /* it has been reset already */
    take_general_path(this);
    return;
  }
  set_name(this->fd, this->family, &local, &this->wanted);
  set_blocking(this->fd, this->blocking);
  if (replace_descriptor(&this->call, this->fd, this->cloexec, result)) {
    count(counter);
    if (!answer(&this->call, result)) {
      unanswered[next_unanswered % MAX_UNANSWERED].cookie = cookie;
      unanswered[next_unanswered++ % MAX_UNANSWERED].answer = result;
    }
  } else
    interrupted[next_interrupted++ % MAX_UNANSWERED] = this->cookie;
  finish(this);
}

/* --- to the outside --------------------------------------------------------------------------------------------- */

static void outside_connected(struct watch *watch, uint32_t events) {
  (void)events;
  struct connecting *this = (struct connecting *)watch;
  int code = get_option(this->fd, SOL_SOCKET, SO_ERROR);
  if (code)
    fail(this, code > 0 ? code : ECONNABORTED);
  else
    put(this, OUTSIDE);
}

static void connect_outside(struct connecting *this) {
  struct sockaddr_in6 address;
  socklen_t size = build_address(this->family, &this->wanted, &address);
  this->stage = OUTSIDE_CONNECT;
  uint64_t limit = this->blocking ? timeout_ms(this->fd, SO_SNDTIMEO) : OUTSIDE_LIMIT;
  this->deadline = limit ? now_ms() + limit : 0;
  struct endpoint reached;
  int code = connect(this->fd, (struct sockaddr *)&address, size) ? errno : 0;
  if (!code || (code == EINPROGRESS && peer_address(this->fd, &reached))) /* a near one often is, by now */
    put(this, OUTSIDE);
  else if (code != EINPROGRESS)
    fail(this, code);
  else if (watch_add(&this->watch, this->fd, EPOLLOUT, outside_connected))
    take_general_path(this);
}

/* --- to a pod --------------------------------------------------------------------------------------------------- */

static uint32_t owner(const struct endpoint *pod) { return (v4(pod) - node.pods.first) >> 8; }

static void drop_spare(struct peer *peer) {
  if (peer->spare.made) close(peer->spare.fd);
  peer->spare.made = 0;
}

static void forget_peer(const struct connecting *this) {
  struct peer *peer = &peers[owner(&this->target)];
  peer->port = 0;
  peer->asked = 0;
  drop_spare(peer);
}

/* Begin to connect a socket to a node. */
static bool dial(int fd, int family, const struct peer *peer) {
  struct endpoint endpoint = v4_endpoint(peer->ip, peer->port);
  struct sockaddr_in6 address;
  socklen_t size = build_address(family, &endpoint, &address);
  set_nodelay(fd, 1);
  return connect(fd, (struct sockaddr *)&address, size) == 0 || errno == EINPROGRESS;
}

/* Who connects to a pod often does so again: have the next connection ready. */
static void make_spare(struct peer *peer) {
  if (peer->spare.made || !peer->port) return;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  if (dial(fd, AF_INET, peer))
    peer->spare = (struct spare){.fd = fd, .made = now_ms()};
  else
    close(fd);
}

/* The spare connection to the node of a pod, or -1. */
static int take_spare(const struct endpoint *pod, int family) {
  struct peer *peer = owner(pod) < MAX_PEERS ? &peers[owner(pod)] : NULL;
  if (!peer || !peer->spare.made || family != AF_INET || now_ms() > peer->spare.made + SPARE_LIMIT) return -1;
  peer->spare.made = 0;
  return peer->spare.fd;
}

/* Receive exactly so many bytes of a step: those that follow belong to the pods. Whether they are there. */
static bool receive_step(struct connecting *this, size_t size) {
  while (this->filled < size) {
    ssize_t got = recv(this->fd, this->buffer + this->filled, size - this->filled, 0);
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {
      forget_peer(this);
      take_general_path(this);
      return false;
    }
    this->filled += (size_t)got;
  }
  this->filled = 0;
  return true;
}

static void send_request(struct connecting *this, const struct peer *peer) {
  struct endpoint own = {0};
  uint8_t message[PROOF + REQUEST];
  dialler_proof(this->buffer, owner(&this->target), peer->ip, peer->port, message, this->expected);
  own_address(this->fd, &own);
  uint32_t ips[] = {htonl(v4(&this->target)), htonl(this->pod)};
  uint16_t ports[] = {htons(this->target.port), htons(own.port)};
  for (int i = 0; i < 2; i++) {
    memcpy(message + PROOF + 6 * i, &ips[i], 4);
    memcpy(message + PROOF + 6 * i + 4, &ports[i], 2);
  }
  this->stage = PEER_ANSWER;
  if (send(this->fd, message, sizeof message, MSG_NOSIGNAL) != sizeof message) take_general_path(this);
}

static void peer_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct connecting *this = (struct connecting *)watch;
  struct peer *peer = &peers[owner(&this->target)];
  switch (this->stage) {
    case PEER_CONNECT:
      if (get_option(this->fd, SOL_SOCKET, SO_ERROR)) {
        forget_peer(this);
        take_general_path(this);
        return;
      }
      this->stage = PEER_NONCE;
      watch_change(&this->watch, EPOLLIN);
      return;
    case PEER_NONCE:
      if (!receive_step(this, NONCE)) return;
      peer->answered = now_ms();
      send_request(this, peer);
      return;
    case PEER_ANSWER:
      if (!receive_step(this, DIGEST + 1)) return;
      if (!same_digest(this->buffer, this->expected) || this->buffer[DIGEST] != YES) {
        take_general_path(this);
        return;
      }
      set_nodelay(this->fd, this->nodelay);
      put(this, PODS);
      make_spare(peer);
      return;
    default: return;
  }
}

static void dial_peer(struct connecting *this, struct peer *peer) {
  this->stage = this->spare ? PEER_NONCE : PEER_CONNECT;
  this->nodelay = get_option(this->fd, IPPROTO_TCP, TCP_NODELAY);
  if (this->spare)
    set_nodelay(this->fd, 1);
  else if (!dial(this->fd, this->family, peer)) {
    forget_peer(this);
    take_general_path(this);
    return;
  }
  if (watch_add(&this->watch, this->fd, this->spare ? EPOLLIN : EPOLLOUT, peer_ready))
    take_general_path(this);
  else if (this->spare)
    peer_ready(&this->watch, EPOLLIN); /* its nonce has come already */
}

static void connect_pod(struct connecting *this) {
  uint32_t index = owner(&this->target);
  this->stage = ADDRESS;
  uint64_t own = this->blocking ? timeout_ms(this->fd, SO_SNDTIMEO) / 8 : SHORT_PEER_LIMIT; /* of the caller's time */
  this->deadline = now_ms() + (own && own < PEER_LIMIT ? own : PEER_LIMIT);
  if (index >= MAX_PEERS || now_ms() < peers[index].avoided_until) {
    take_general_path(this);
    return;
  }
  struct peer *peer = &peers[index];
  if (!peer->port || now_ms() > peer->known + ADDRESS_LIMIT)
    if (now_ms() > peer->asked + PEER_LIMIT) {
      peer->asked = now_ms();
      want_peer(index);
    }
  if (peer->port) dial_peer(this, peer);
}

void peer_found(uint32_t index, uint32_t ip, uint16_t port) {
  if (index >= MAX_PEERS) return;
  struct peer *peer = &peers[index];
  if (peer->ip != ip || peer->port != port) drop_spare(peer);
  peer->ip = ip;
  peer->port = port;
  peer->known = now_ms();
  for (struct connecting *this = all, *next; this; this = next) {
    next = this->next;
    if (this->stage != ADDRESS || owner(&this->target) != index) continue;
    if (port)
      dial_peer(this, peer);
    else
      take_general_path(this);
  }
}

/* --- calls ------------------------------------------------------------------------------------------------------ */

/* What connect(2) says of a socket that is one of the host's already. */
static int answer_for_native(const struct call *call, int own) {
  uint64_t cookie = socket_cookie(own);
  if (call->slot->planned != NO_ANSWER) return call->slot->planned; /* an earlier server could not say it any more */
  for (int i = 0; i < MAX_UNANSWERED; i++)
    if (unanswered[i].cookie == cookie) return unanswered[i].answer;
  return -EISCONN;
}

static void forget_unanswered(uint64_t cookie) {
  for (int i = 0; i < MAX_UNANSWERED; i++)
    if (unanswered[i].cookie == cookie) unanswered[i].cookie = 0;
}

/* Begin a native connection, if the caller's socket can be replaced without a difference for the application. */
static bool begin(struct call *call, int own, const struct connecting *about, enum path path) {
  struct endpoint bound;
  if (!own_address(own, &bound) || bound.port) return false;
  int flags = descriptor_flags(caller(call), socket_number(call));
  if (flags < 0 || flags & O_ASYNC || !can_be_copied(own) || is_shared(caller(call), socket_number(call), own))
    return false;
  struct connecting *this = malloc(sizeof *this);
  int fd = path == TO_POD ? take_spare(&about->target, about->family) : -1;
  bool spare = fd >= 0;
  if (!spare) fd = socket(about->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (spare) set_nodelay(fd, 0);
  if (!this || fd < 0 || !copy_options(own, fd)) {
    if (fd >= 0) close(fd);
    free(this);
    return false;
  }
  *this = *about;
  this->call = *call;
  this->fd = fd;
  this->spare = spare;
  this->watch.fd = -1;
  this->blocking = !(flags & O_NONBLOCK);
  this->cloexec = flags & O_CLOEXEC;
  this->next = all;
  this->previous = &all;
  if (all) all->previous = &this->next;
  all = this;
  tick_soon();
  if (path == TO_POD)
    connect_pod(this);
  else
    connect_outside(this);
  return true;
}

/* Whether a signal has interrupted an earlier call for that socket. Signals that keep coming must not keep it from ever
 * being connected: the kernel, on the general path, goes on with what it has begun. */
static bool was_interrupted(uint64_t cookie) {
  bool found = false;
  for (struct connecting *this = all, *next; this; this = next) {
    next = this->next;
    if (this->cookie != cookie) continue;
    found = true;
    finish(this);
  }
  for (int i = 0; !found && i < MAX_UNANSWERED; i++) found = interrupted[i] == cookie;
  return found;
}

static void connect_socket(struct call *call, int own, int family, const void *address, size_t size) {
  uint64_t netns = netns_cookie(own);
  if (netns == host_netns) {
    if (answer(call, answer_for_native(call, own))) forget_unanswered(socket_cookie(own));
    return;
  }
  struct connecting about = {.family = family, .cookie = socket_cookie(own)};
  sa_family_t named;
  memcpy(&named, address, sizeof named);
  enum path path = LOCAL;
  if (named == family && parse_address(address, size, &about.wanted)) {
    about.target = about.wanted;
    path = choose_path(&about.target);
  }
  if (path == TO_OUTSIDE || path == TO_POD) {
    about.pod = pod_of(caller(call), own);
    if (about.pod && !was_interrupted(about.cookie) && begin(call, own, &about, path)) return;
  }
  if (path != LOCAL) count(GENERAL);
  let_continue(call);
}

void handle_connect(struct call *call) {
  uint8_t address[sizeof(struct sockaddr_in6)];
  uint32_t given = (uint32_t)argument(call, 2);
  size_t size = given < sizeof address ? given : sizeof address;
  sa_family_t family = AF_UNIX;
  if (size >= sizeof family && given <= sizeof(struct sockaddr_storage) &&
      read_memory(caller(call), argument(call, 1), address, size))
    memcpy(&family, address, sizeof family);
  int own = family == AF_INET || family == AF_INET6 || family == AF_UNSPEC
                ? copy_descriptor(caller(call), socket_number(call))
                : -1;
  int own_family;
  if (own >= 0 && is_tcp(own, &own_family))
    connect_socket(call, own, own_family, address, size);
  else
    let_continue(call);
  if (own >= 0) close(own);
}

void handle_name(struct call *call, bool peer) {
  int family, own = copy_descriptor(caller(call), socket_number(call));
  const struct name *name = NULL;
  if (own >= 0 && is_tcp(own, &family) && netns_cookie(own) == host_netns && (!peer || tcp_state(own) != TCP_CLOSE))
    name = find_name(socket_cookie(own));
  if (own >= 0) close(own);
  if (name)
    answer(call, -write_address(call, name->family, peer ? &name->peer : &name->local));
  else
    let_continue(call);
}

/* A node has not answered in time. If it answers others, it is just slow. */
static void note_silence(struct peer *peer, uint64_t now) {
  if (now > peer->answered + SILENT) peer->avoided_until = now + AVOIDED;
}

bool connecting_tick(uint64_t now) {
  static uint64_t next_validation;
  bool validate = now >= next_validation;
  if (validate) next_validation = now + VALID_INTERVAL;
  for (size_t i = 0; validate && i < MAX_PEERS; i++)
    if (peers[i].spare.made && now > peers[i].spare.made + SPARE_LIMIT) drop_spare(&peers[i]);
  for (struct connecting *this = all, *next; this; this = next) {
    next = this->next;
    if (validate && !is_waited_for(&this->call)) {
      interrupted[next_interrupted++ % MAX_UNANSWERED] = this->cookie;
      finish(this);
    } else if (this->deadline && now >= this->deadline) {
      if (this->stage == PEER_CONNECT || this->stage == PEER_NONCE) note_silence(&peers[owner(&this->target)], now);
      take_general_path(this);
    }
  }
  return all != NULL;
}
