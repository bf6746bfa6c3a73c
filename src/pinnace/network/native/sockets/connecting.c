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
  MAX_SPARES = 8,         /* to a node: made together, they cost less than one by one */
  MAX_PORTS = 256,        /* from which they are made, in turn */
  SPARE_RUSH = 50,        /* milliseconds: if one was made less long ago than that, more are wanted */
  SURE_LIMIT = 100,       /* milliseconds for which a pod that was connected to is taken to accept the next one too */
  MAX_SURE = 1024,
  FORGOTTEN = 60000, /* milliseconds after which a node that nobody connects to any more is forgotten */
  BUCKETS = 256,     /* of the table of nodes */
  MAX_UNANSWERED = 64,
};
enum path { LOCAL, BY_GENERAL_PATH, TO_OUTSIDE, TO_POD };
enum stage { ADDRESS, OUTSIDE_CONNECT, PEER_NONCE, PEER_PROOF, PEER_PROVEN, PEER_ANSWER };

/* How far a connection to a node is. */
struct handshake {
  enum stage stage;
  size_t filled; /* how much has been received of a step */
  uint8_t buffer[DIGEST], expected[DIGEST];
};

struct connecting {
  struct watch watch; /* of the host's socket */
  struct connecting *next, **previous;
  struct call call;
  uint64_t cookie; /* of the caller's own socket */
  struct handshake handshake;
  uint64_t deadline; /* 0: none */
  int fd;            /* the host's socket */
  int own;           /* the caller's, while its call is begun */
  bool spare;        /* it was a spare one */
  int family;
  bool blocking, cloexec;
  uint32_t pod;           /* the caller's own address */
  struct endpoint wanted; /* what it asked for */
  struct endpoint target; /* the pod behind that */
};

/* A connection to a node for the next pod that wants one there. Most often both ends have proven themselves by then. */
struct spare {
  struct watch watch;
  struct handshake handshake;
  struct peer *peer;
  int fd;
  uint64_t made; /* 0: there is none */
};

static struct peer { /* a node that somebody has connected to not long ago */
  struct peer *next;
  uint32_t index;
  uint32_t ip;
  uint16_t port; /* 0: not known */
  uint64_t used, asked, known, answered, avoided_until;
  int wanted_spares;
  struct spare spares[MAX_SPARES];
  struct endpoint own[MAX_PORTS]; /* from where spare connections were made */
  unsigned turn;
} *peers[BUCKETS];

static struct connecting *all;
static struct {
  uint64_t cookie;
  int answer;
} unanswered[MAX_UNANSWERED]; /* sockets that were replaced for callers that a signal interrupted in that moment */
static unsigned next_unanswered;
static struct {
  uint32_t ip;
  uint16_t port;
  uint64_t when;
} sure[MAX_SURE];                            /* pods that have accepted a connection not long ago */
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
 * addresses. Returns 0, EALREADY if it is not connected yet, or why it never will be. */
static int settle(int fd) {
  struct sockaddr_in unused = {.sin_family = AF_INET}; /* the kernel goes on with what it has begun */
  return connect(fd, (struct sockaddr *)&unused, sizeof unused) == 0 || errno == EISCONN ? 0 : errno;
}

/* Put the host's socket in its place, and answer the call. Who does not want to wait is told that it takes a moment. */
static void put(struct connecting *this, enum counter counter) {
  int result = this->blocking ? 0 : -EINPROGRESS;
  struct name name = {.cookie = socket_cookie(this->fd), .family = this->family, .peer = this->wanted};
  own_address(this->fd, &name.real_local);
  peer_address(this->fd, &name.real_peer);
  name.local = v4_endpoint(this->pod, name.real_local.port);
  add_name(&name);
  if (this->blocking) set_blocking(this->fd, true);
  if (replace_descriptor(&this->call, this->fd, this->cloexec, result)) {
    count(counter);
    if (!answer(&this->call, result)) {
      unanswered[next_unanswered % MAX_UNANSWERED].cookie = name.cookie;
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
  int code = settle(this->fd);
  if (!code)
    put(this, OUTSIDE);
  else if (code != EALREADY)
    fail(this, code);
}

static void connect_outside(struct connecting *this) {
  struct sockaddr_in6 address;
  socklen_t size = build_address(this->family, &this->wanted, &address);
  this->handshake.stage = OUTSIDE_CONNECT;
  uint64_t limit = this->blocking ? timeout_ms(this->fd, SO_SNDTIMEO) : OUTSIDE_LIMIT;
  this->deadline = limit ? now_ms() + limit : 0;
  int code = connect(this->fd, (struct sockaddr *)&address, size) ? errno : 0;
  if (code == EINPROGRESS) code = settle(this->fd); /* a near one often is connected by now */
  if (!code)
    put(this, OUTSIDE);
  else if (code != EALREADY)
    fail(this, code);
  else if (watch_add(&this->watch, this->fd, EPOLLOUT, outside_connected))
    take_general_path(this);
}

/* --- to a pod --------------------------------------------------------------------------------------------------- */

static uint32_t owner(const struct endpoint *pod) { return (v4(pod) - node.pods.first) >> node.pod_bits; }

static struct peer *find_peer(uint32_t index) {
  struct peer *peer = peers[index % BUCKETS];
  while (peer && peer->index != index) peer = peer->next;
  return peer;
}

/* The node of a pod; NULL if there is no memory. */
static struct peer *use_peer(const struct endpoint *pod) {
  uint32_t index = owner(pod);
  struct peer *peer = find_peer(index);
  if (!peer && (peer = calloc(1, sizeof *peer))) {
    peer->index = index;
    peer->wanted_spares = 1;
    peer->next = peers[index % BUCKETS];
    peers[index % BUCKETS] = peer;
  }
  if (peer) peer->used = now_ms();
  return peer;
}

static void drop_spare(struct spare *spare) {
  if (!spare->made) return;
  watch_remove(&spare->watch);
  close(spare->fd);
  spare->made = 0;
}

static void drop_spares(struct peer *peer) {
  for (int i = 0; i < MAX_SPARES; i++) drop_spare(&peer->spares[i]);
}

static void forget_address(const struct connecting *this) {
  struct peer *peer = find_peer(owner(&this->target));
  if (!peer) return;
  peer->port = 0;
  peer->asked = 0;
  drop_spares(peer);
}

/* Begin to connect a socket to a node. */
static bool dial(int fd, int family, const struct peer *peer) {
  struct endpoint endpoint = v4_endpoint(peer->ip, peer->port);
  struct sockaddr_in6 address;
  socklen_t size = build_address(family, &endpoint, &address);
  return connect(fd, (struct sockaddr *)&address, size) == 0 || errno == EINPROGRESS;
}

enum progress { WAITS, FAILED, COMPLETE };

/* Receive exactly so many bytes of a step: those that follow belong to the pods. */
static enum progress receive_step(int fd, struct handshake *this, size_t size) {
  while (this->filled < size) {
    ssize_t got = recv(fd, this->buffer + this->filled, size - this->filled, 0);
    if (got < 0 && errno == EAGAIN) return WAITS;
    if (got <= 0) return FAILED;
    this->filled += (size_t)got;
  }
  this->filled = 0;
  return COMPLETE;
}

static void build_request(const struct connecting *this, char word, uint8_t request[REQUEST]) {
  struct endpoint own = {0};
  own_address(this->fd, &own);
  uint32_t ips[] = {htonl(v4(&this->target)), htonl(this->pod)};
  uint16_t ports[] = {htons(this->target.port), htons(own.port)};
  for (int i = 0; i < 2; i++) {
    memcpy(request + 6 * i, &ips[i], 4);
    memcpy(request + 6 * i + 4, &ports[i], 2);
  }
  request[REQUEST - 1] = (uint8_t)word;
}

/* Go on with the proofs of both ends. The request of who wants the connection, if somebody does, follows our own. */
static enum progress prove_ourselves(int fd, struct handshake *this, struct peer *peer, const struct connecting *who) {
  uint8_t message[PROOF + REQUEST];
  size_t size = who ? sizeof message : PROOF;
  enum progress progress = receive_step(fd, this, this->stage == PEER_NONCE ? NONCE : DIGEST);
  if (progress != COMPLETE) return progress;
  peer->answered = now_ms();
  if (this->stage == PEER_PROOF) {
    this->stage = PEER_PROVEN;
    return same_digest(this->buffer, this->expected) ? COMPLETE : FAILED;
  }
  this->stage = PEER_PROOF;
  dialler_proof(this->buffer, peer->index, peer->ip, peer->port, message, this->expected);
  if (who) build_request(who, ASKS, message + PROOF);
  return send(fd, message, size, MSG_NOSIGNAL) == (ssize_t)size ? WAITS : FAILED;
}

static void spare_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct spare *spare = (struct spare *)watch;
  switch (prove_ourselves(spare->fd, &spare->handshake, spare->peer, NULL)) {
    case WAITS: return;
    case FAILED: drop_spare(spare); return;
    case COMPLETE: watch_remove(watch);
  }
}

/* Use a port of ours again, if its connection is over.
 *
 * All connections to a node are to the same port of it. If the kernel is to choose ours, it looks for one that was not
 * used for a minute, which takes milliseconds when there were thousands, until there is none. One that it is asked for
 * can be used again at once, if every socket that has it says so (SO_REUSEADDR, which says nothing else of a socket
 * that is connected). But not before the other end has ended its connection too: that would be reset. */
static void bind_again(int fd, const struct peer *peer, const struct endpoint *own) {
  struct endpoint there = v4_endpoint(peer->ip, peer->port), any = v4_endpoint(INADDR_ANY, own->port);
  struct sockaddr_in6 address;
  if (own->port && is_connected(own, &there, ANY_COOKIE)) any.port = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
  for (bool bound = false; !bound; any.port = 0) {
    socklen_t size = build_address(AF_INET, &any, &address);
    bound = bind(fd, (struct sockaddr *)&address, size) == 0 || !any.port;
  }
}

static void make_spare(struct peer *peer, struct spare *spare) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  struct endpoint *own = &peer->own[peer->turn++ % MAX_PORTS];
  *spare = (struct spare){.peer = peer, .fd = fd, .handshake.stage = PEER_NONCE};
  bind_again(fd, peer, own);
  if (dial(fd, AF_INET, peer) && watch_add(&spare->watch, fd, EPOLLIN, spare_ready) == 0) {
    own_address(fd, own);
    spare->made = now_ms();
  } else {
    own->port = 0;
    close(fd);
  }
}

/* Who connects to a pod often does so again: when there is no spare connection left, have the next ones ready. */
static void make_spares(struct peer *peer) {
  for (int i = 0; i < MAX_SPARES; i++)
    if (peer->spares[i].made) return;
  for (int i = 0; i < peer->wanted_spares && peer->port; i++) make_spare(peer, &peer->spares[i]);
}

static bool is_closed(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_PEEK) >= 0 || errno != EAGAIN;
}

/* The spare connection to the node of a pod that is furthest, and how far that is; or -1. */
static int take_spare(const struct endpoint *pod, int family, struct handshake *handshake) {
  struct peer *peer = family == AF_INET ? find_peer(owner(pod)) : NULL;
  struct spare *best = NULL;
  uint64_t now = now_ms();
  for (int i = 0; peer && i < MAX_SPARES; i++) {
    struct spare *spare = &peer->spares[i];
    if (!spare->made || now > spare->made + SPARE_LIMIT) continue;
    if (!best || spare->handshake.stage > best->handshake.stage) best = spare;
  }
  if (!best) return -1;
  if (now < best->made + SPARE_RUSH && peer->wanted_spares < MAX_SPARES) peer->wanted_spares *= 2;
  if (best->handshake.stage == PEER_PROVEN && is_closed(best->fd)) {
    drop_spares(peer); /* the other end has ended */
    return -1;
  }
  *handshake = best->handshake;
  watch_remove(&best->watch);
  best->made = 0;
  return best->fd;
}

static bool is_sure(const struct endpoint *pod) {
  uint32_t ip = v4(pod), place = (ip ^ pod->port) % MAX_SURE;
  return sure[place].ip == ip && sure[place].port == pod->port && now_ms() < sure[place].when + SURE_LIMIT;
}

static void note_sure(const struct endpoint *pod) {
  uint32_t ip = v4(pod), place = (ip ^ pod->port) % MAX_SURE;
  sure[place].ip = ip;
  sure[place].port = pod->port;
  sure[place].when = now_ms();
}

static void pod_connected(struct connecting *this, struct peer *peer) {
  if (settle(this->fd)) { /* it has been reset already */
    take_general_path(this);
    return;
  }
  put(this, PODS);
  make_spares(peer);
}

static void peer_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct connecting *this = (struct connecting *)watch;
  struct handshake *handshake = &this->handshake;
  struct peer *peer = use_peer(&this->target);
  enum progress progress = peer ? COMPLETE : FAILED;
  if (progress == COMPLETE && handshake->stage != PEER_ANSWER) {
    progress = prove_ourselves(this->fd, handshake, peer, this);
    if (progress == COMPLETE) handshake->stage = PEER_ANSWER;
  }
  if (progress == COMPLETE) progress = receive_step(this->fd, handshake, 1);
  if (progress == FAILED) forget_address(this);
  if (progress == FAILED || (progress == COMPLETE && handshake->buffer[0] != YES))
    take_general_path(this);
  else if (progress == COMPLETE) {
    note_sure(&this->target);
    pod_connected(this, peer);
  }
}

/* Go on with a spare connection. Who was connected to a moment ago is so again without waiting for the other node, as
 * the kernel does it for a server that has not accepted yet. */
static void use_spare(struct connecting *this, struct peer *peer) {
  struct handshake *handshake = &this->handshake;
  bool is_proven = handshake->stage == PEER_PROVEN, waits = !is_proven || !is_sure(&this->target);
  if (handshake->stage != PEER_NONCE) {
    uint8_t request[REQUEST];
    build_request(this, waits ? ASKS : IS_SURE, request);
    if (send(this->fd, request, REQUEST, MSG_NOSIGNAL) != REQUEST) {
      take_general_path(this);
      return;
    }
    if (is_proven) handshake->stage = PEER_ANSWER;
  }
  if (!copy_options(this->own, this->fd, this->family)) /* now, while the other node is at work */
    take_general_path(this);
  else if (!waits)
    pod_connected(this, peer);
  else if (watch_add(&this->watch, this->fd, EPOLLIN, peer_ready))
    take_general_path(this);
  else
    peer_ready(&this->watch, EPOLLIN); /* what it waits for may have come already */
}

static void dial_peer(struct connecting *this, struct peer *peer) {
  if (this->spare) {
    use_spare(this, peer);
    return;
  }
  this->handshake.stage = PEER_NONCE;
  if (!dial(this->fd, this->family, peer)) {
    forget_address(this);
    take_general_path(this);
  } else if (watch_add(&this->watch, this->fd, EPOLLIN, peer_ready))
    take_general_path(this);
}

static void connect_pod(struct connecting *this) {
  struct peer *peer = use_peer(&this->target);
  if (!this->spare) this->handshake.stage = ADDRESS;
  uint64_t own = this->blocking ? timeout_ms(this->fd, SO_SNDTIMEO) / 8 : SHORT_PEER_LIMIT; /* of the caller's time */
  this->deadline = now_ms() + (own && own < PEER_LIMIT ? own : PEER_LIMIT);
  if (!peer || peer->index > node.last_index || now_ms() < peer->avoided_until) {
    take_general_path(this);
    return;
  }
  if (!peer->port || now_ms() > peer->known + ADDRESS_LIMIT)
    if (now_ms() > peer->asked + PEER_LIMIT) {
      peer->asked = now_ms();
      want_peer(peer->index);
    }
  if (peer->port) dial_peer(this, peer);
}

void peer_found(uint32_t index, uint32_t ip, uint16_t port) {
  struct peer *peer = find_peer(index);
  if (!peer) return;
  if (peer->ip != ip || peer->port != port) drop_spares(peer);
  peer->ip = ip;
  peer->port = port;
  peer->known = now_ms();
  for (struct connecting *this = all, *next; this; this = next) {
    next = this->next;
    if (this->handshake.stage != ADDRESS || owner(&this->target) != index) continue;
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
  struct handshake handshake = {0};
  int fd = path == TO_POD ? take_spare(&about->target, about->family, &handshake) : -1;
  bool spare = fd >= 0;
  if (!spare) fd = socket(about->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (!this || fd < 0 || (!spare && !copy_options(own, fd, about->family))) {
    if (fd >= 0) close(fd);
    free(this);
    return false;
  }
  *this = *about;
  this->call = *call;
  this->fd = fd;
  this->own = own;
  this->spare = spare;
  this->handshake = handshake;
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
    about.pod = pod_of(caller(call), own, netns);
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
  int own = copy_descriptor(caller(call), socket_number(call));
  const struct name *name = own >= 0 ? find_name(socket_cookie(own)) : NULL; /* only sockets of the host have one */
  if (name && peer && tcp_state(own) == TCP_CLOSE) name = NULL;
  if (own >= 0) close(own);
  if (name)
    answer(call, -write_address(call, name->family, peer ? &name->peer : &name->local));
  else
    let_continue(call);
}

/* What a connection to a pod waits for may have come by now. Whether its call is done. */
static bool look_once_more(struct connecting *this) {
  if (this->handshake.stage < PEER_NONCE || this->watch.fd < 0) return false;
  peer_ready(&this->watch, EPOLLIN);
  return this->watch.fd < 0;
}

/* A node has not answered in time. If it answers others, it is just slow. */
static void note_silence(const struct connecting *this, uint64_t now) {
  struct peer *peer = find_peer(owner(&this->target));
  if (peer && now > peer->answered + SILENT) peer->avoided_until = now + AVOIDED;
}

/* Close spare connections that nobody has taken: fewer are wanted then. */
static void drop_old_spares(struct peer *peer, uint64_t now) {
  for (int i = 0; i < MAX_SPARES; i++)
    if (peer->spares[i].made && now > peer->spares[i].made + SPARE_LIMIT) {
      drop_spare(&peer->spares[i]);
      peer->wanted_spares = 1;
    }
}

/* Close old spare connections, and forget nodes that nobody connects to any more. */
static void clean_peers(uint64_t now) {
  for (size_t i = 0; i < BUCKETS; i++)
    for (struct peer **place = &peers[i], *peer; (peer = *place);) {
      drop_old_spares(peer, now);
      if (now > peer->used + FORGOTTEN) { /* no call takes that long to reach it; calls look it up at every step */
        *place = peer->next;
        drop_spares(peer);
        free_later(peer);
      } else
        place = &peer->next;
    }
}

bool connecting_tick(uint64_t now) {
  static uint64_t next_validation;
  bool validate = now >= next_validation;
  if (validate) next_validation = now + VALID_INTERVAL;
  if (validate) clean_peers(now);
  for (struct connecting *this = all, *next; this; this = next) {
    next = this->next;
    if (validate && !is_waited_for(&this->call)) {
      interrupted[next_interrupted++ % MAX_UNANSWERED] = this->cookie;
      finish(this);
    } else if (this->deadline && now >= this->deadline) {
      if (look_once_more(this)) continue;
      if (this->handshake.stage == PEER_NONCE) note_silence(this, now);
      take_general_path(this);
    }
  }
  return all != NULL;
}
