/* accept(2) of pods, and the connections of other nodes that become theirs.
 *
 * An application learns of a connection when its listening socket becomes readable. So for a connection of another node
 * we knock: we connect to the application's own socket, from within the node. The application wakes up and accepts;
 * that call is caught, and instead of the knock it gets the socket of the other node's connection. A caller that waits
 * in accept(2), on a socket where a knock has arrived not long ago, gets it at once. Others are woken by a knock from
 * within the pod then, which takes a third of the time.
 *
 * An application that accepts in a way that is not caught (io_uring) gets the knock itself. Then, or if nobody accepts
 * for a second although the queue is empty (ten, if calls of that application were caught before), Python joins the two
 * connections by splicing. */
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
  MAX_DIALLERS = 512,     /* connections whose handshake is not complete; anybody can make them */
  HANDSHAKE_LIMIT = 5000, /* milliseconds for a handshake */
  PROVEN_LIMIT = 5000,    /* milliseconds for which a node keeps a connection ready: it does so for less */
  KNOCK_LIMIT = 300,      /* milliseconds in which the kernel has to answer for a pod, if the other node waits for it */
  LONG_KNOCK_LIMIT = 15000, /* milliseconds, if it does not: the kernel knocks again when a queue was full */
  ACCEPT_INTERVAL = 1000,   /* milliseconds between looks at connections that nobody has accepted */
  MAX_LOOKS = 10,           /* at one that is not in the queue of an application whose calls are caught */
  HEARD_LIMIT = 5000,       /* milliseconds for which a knock stands for others to the same socket */
  SOON = 150,               /* milliseconds: more than between two looks at time limits */
  UNCLAIMED_LIMIT = 10000,  /* milliseconds in which a caller has to come back */
  ACCEPT_BATCH = 32,
  FLOOD_PAUSE = 10, /* milliseconds between batches while the table of diallers is half full */
  LISTENERS = 4096,
  LISTENER_WAYS = 4,
};

static bool is_exhausted(int code) { return code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM; }

/* --- what pods listen on ---------------------------------------------------------------------------------------- */

static struct listener {
  uint32_t ip;
  uint16_t port;
  pid_t pid;
  int number;
  uint64_t cookie;
  bool accepts;      /* whether one of its calls of accept was caught */
  uint32_t accepted; /* how many connections were taken from its queue by such calls */
  uint64_t heard;    /* when a knock of the node has arrived there: that is how the kernel's decision is known */
} listeners[LISTENERS];
static unsigned listener_turn;

static struct listener *listener_bucket(uint32_t ip, uint16_t port) {
  return &listeners[(ip * 2654435761u ^ port * 40503u) % (LISTENERS / LISTENER_WAYS) * LISTENER_WAYS];
}

static struct listener *find_listener(const struct endpoint *endpoint) {
  uint32_t ip = v4(endpoint);
  struct listener *first = listener_bucket(ip, endpoint->port);
  for (int i = 0; i < LISTENER_WAYS; i++)
    if (first[i].ip == ip && first[i].port == endpoint->port) return &first[i];
  return NULL;
}

/* Whether the kernel would take a knock of the node there: it did so not long ago. */
static bool is_heard(const struct listener *listener) {
  return listener->heard && now_ms() <= listener->heard + HEARD_LIMIT;
}

static bool is_deferred(int listener) { return get_option(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT) > 0; }

/* A copy of the application's own socket, -1 if it is no longer there. */
static int copy_listener(const struct listener *listener) {
  int own = copy_descriptor(listener->pid, listener->number);
  if (own < 0 || socket_cookie(own) == listener->cookie) return own;
  close(own);
  return -1;
}

/* Note on what a pod listens. Whether it is a pod's network at all. */
static bool note_listener(const struct call *call, int own, bool accepts) {
  struct endpoint bound;
  uint32_t pod = pod_of(caller(call), own, netns_cookie(own));
  if (!pod || !own_address(own, &bound)) return false;
  if (!bound.port) return true;
  struct endpoint endpoint = v4_endpoint(pod, bound.port);
  struct listener *found = find_listener(&endpoint), *first = listener_bucket(pod, bound.port);
  if (is_deferred(own)) { /* it would not hear a knock: that says nothing */
    if (found) found->port = 0;
    return true;
  }
  for (int i = 0; !found && i < LISTENER_WAYS; i++)
    if (!first[i].port) found = &first[i];
  if (!found) found = &first[listener_turn++ % LISTENER_WAYS];
  uint64_t cookie = socket_cookie(own);
  if (found->cookie != cookie) *found = (struct listener){.cookie = cookie};
  found->ip = pod;
  found->port = bound.port;
  found->pid = caller(call);
  found->number = socket_number(call);
  found->accepts |= accepts;
  return true;
}

/* Whether a knock would wake the application. Between listen(2) and its first accept it may have asked to be told only
 * of connections with data; and if it has become a daemon in the meantime, we cannot look. */
static bool hears_knocks(const struct listener *listener) {
  if (listener->accepts) return true;
  int own = copy_listener(listener);
  bool hears = own >= 0 && !is_deferred(own);
  if (own >= 0) close(own);
  return hears;
}

void handle_listen(struct call *call) {
  int family, own = copy_descriptor(caller(call), socket_number(call));
  bool native = own >= 0 && netns_cookie(own) == host_netns;
  if (own >= 0 && is_listener(own, &family)) note_listener(call, own, false);
  if (own >= 0) close(own);
  if (native)
    answer(call, -EINVAL); /* nobody listens in the host's network */
  else
    let_continue(call);
}

/* --- connections that wait to be accepted ----------------------------------------------------------------------- */

/* What a dialler waits for. */
struct reply {
  bool with_proof; /* it has not got that yet */
  uint8_t proof[DIGEST];
};

struct waiting {
  struct watch watch; /* of the knock */
  struct waiting *next, **previous;
  struct knock knock; /* with a descriptor of -1 if there was no socket for it yet */
  int peer;
  struct endpoint target, source; /* the pods' addresses */
  struct endpoint from;           /* the knock's own */
  struct reply reply;
  bool confirmed, connected, repeated;
  uint64_t deadline;
  int looks;
  uint32_t ahead;    /* the length of the queue at the first look */
  uint32_t accepted; /* and how many had been taken from it by then */
};

static struct waiting *all_waiting, *by_port[1 << 16]; /* of the knock */
static int without_socket;                             /* how many wait for one to knock with */

static void say(int peer, const struct reply *reply, char word) {
  uint8_t message[DIGEST + 1];
  size_t size = reply->with_proof ? DIGEST : 0;
  memcpy(message, reply->proof, size);
  message[size] = (uint8_t)word;
  send(peer, message, size + 1, MSG_NOSIGNAL);
}

/* Tell the other node that the connection is made: before the application can write anything to it. */
static void confirm(struct waiting *this) {
  if (!this->confirmed) say(this->peer, &this->reply, YES);
  this->confirmed = true;
}

/* ``reply`` is NULL if the other node believes it connected. */
static void refuse(int peer, const struct reply *reply) {
  if (!reply) {
    reset(peer);
    return;
  }
  say(peer, reply, NO);
  set_linger(peer, false);
  close(peer);
}

/* Its descriptors are somebody else's from now on. */
static void forget_waiting(struct waiting *this) {
  watch_remove(&this->watch);
  if (this->knock.fd >= 0)
    by_port[this->from.port] = NULL;
  else
    without_socket--;
  *this->previous = this->next;
  if (this->next) this->next->previous = this->previous;
  free_later(this);
}

static void knock_again(struct waiting *);

static void join_by_splicing(struct waiting *this) {
  struct listener *listener = find_listener(&this->target);
  if (this->knock.is_near) { /* it seems to be the pod's own, which an application may trust more than others */
    if (listener) listener->heard = 0;
    knock_again(this);
    return;
  }
  if (listener) listener->port = 0; /* until one of its calls is caught again */
  count(SPLICED);
  confirm(this);
  forget_waiting(this);
  splice_in_python(this->knock.fd, this->peer);
}

/* Nobody listens any more, or the kernel does not answer. */
static void give_up(struct waiting *this) {
  forget_waiting(this);
  refuse(this->peer, this->confirmed ? NULL : &this->reply);
  if (this->knock.fd >= 0) close(this->knock.fd);
}

static void knock_heard(struct watch *watch, uint32_t events) {
  (void)events;
  struct waiting *this = (struct waiting *)watch;
  char byte;
  if (recv(this->knock.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
    join_by_splicing(this); /* the application has accepted the knock itself */
  else
    give_up(this); /* it has closed its listening socket */
}

/* Most are accepted at once: who is not, is watched from the next look on. */
static void knock_arrived(struct waiting *this) {
  this->connected = true;
  confirm(this);
  this->deadline = now_ms() + ACCEPT_INTERVAL;
}

static void knock_connected(struct watch *watch, uint32_t events) {
  (void)events;
  struct waiting *this = (struct waiting *)watch;
  if (get_option(this->knock.fd, SOL_SOCKET, SO_ERROR)) {
    give_up(this);
    return;
  }
  watch_remove(watch);
  knock_arrived(this);
}

/* Knock with a socket, which is closed if that fails. A near one has to arrive at once, as most do. */
static bool knock_with(struct waiting *this, struct knock knock, int family) {
  struct sockaddr_in6 address;
  struct endpoint reached;
  socklen_t size = build_address(family, &this->target, &address);
  if (knock.fd < 0) return false;
  set_blocking(knock.fd, false);
  bool begun = connect(knock.fd, (struct sockaddr *)&address, size) == 0 || errno == EINPROGRESS;
  bool arrived = begun && peer_address(knock.fd, &reached);
  if (!begun || (knock.is_near && !arrived) || !own_address(knock.fd, &this->from) || by_port[this->from.port] ||
      (!arrived && watch_add(&this->watch, knock.fd, EPOLLOUT, knock_connected))) {
    close(knock.fd);
    return false;
  }
  this->knock = knock;
  without_socket--;
  by_port[this->from.port] = this;
  if (arrived) knock_arrived(this);
  return true;
}

/* Knock, if there is a socket for it: those that come back from the node's own network may be late. */
static void begin_knock(struct waiting *this) {
  const struct listener *listener = find_listener(&this->target);
  int near = listener && is_heard(listener) ? take_near_socket(listener->cookie) : -1;
  if (!knock_with(this, (struct knock){.fd = near, .is_near = true}, near >= 0 ? family_of(near) : 0))
    knock_with(this, (struct knock){.fd = take_fabric_socket()}, AF_INET); /* or the next one, at the next look */
}

static void begin_knocks(void) {
  for (struct waiting *this = without_socket ? all_waiting : NULL, *next; this; this = next) {
    next = this->next;
    if (this->knock.fd < 0) begin_knock(this);
  }
}

/* Take a connection until it is accepted. ``reply`` is for who has made it, NULL if it waits for none.
 * NULL if the application would not hear a knock. */
static struct waiting *knock(int peer, const struct endpoint *target, const struct endpoint *source,
                             const struct reply *reply) {
  const struct listener *listener = find_listener(target);
  struct waiting *this = listener && hears_knocks(listener) ? calloc(1, sizeof *this) : NULL;
  if (!this) return NULL;
  this->watch.fd = this->knock.fd = -1;
  without_socket++;
  this->peer = peer;
  this->target = *target;
  this->source = *source;
  this->confirmed = !reply;
  if (reply) this->reply = *reply;
  this->deadline = now_ms() + (reply ? KNOCK_LIMIT : LONG_KNOCK_LIMIT);
  this->next = all_waiting;
  this->previous = &all_waiting;
  if (all_waiting) all_waiting->previous = &this->next;
  all_waiting = this;
  begin_knock(this);
  if (this->knock.fd < 0) tick_soon();
  return this; /* it may be over already, but is there until the events at hand are */
}

/* The kernel drops a knock that arrives at a full queue, though our end of it is connected, and would repeat it seldom
 * and not for long. */
static void knock_again(struct waiting *old) {
  forget_waiting(old);
  reset(old->knock.fd);
  struct waiting *this = knock(old->peer, &old->target, &old->source, NULL);
  if (this)
    this->repeated = true;
  else
    refuse(old->peer, NULL);
}

/* Whether as many were taken from the queue as were in it at the first look. */
static bool was_passed_over(struct waiting *this, const struct listener *listener, uint32_t queued) {
  if (!this->looks++ || listener->accepted < this->accepted) { /* or there is another socket now */
    this->ahead = queued;
    this->accepted = listener->accepted;
  }
  return listener->accepted - this->accepted > this->ahead;
}

/* A connection that nobody has accepted for a second: the application may still do so, in a way that is caught, if it
 * is in the queue; or if it has done so before, and another process of it has the socket. */
static void look_at_knock(struct waiting *this, uint64_t now) {
  const struct listener *listener = find_listener(&this->target);
  int own = listener ? copy_listener(listener) : -1;
  uint32_t queued = own >= 0 ? queue_length(own) : 0;
  bool is_only = own >= 0 && get_option(own, SOL_SOCKET, SO_REUSEPORT) == 0; /* the kernel has no other to choose */
  bool is_missed = listener && was_passed_over(this, listener, queued);
  if (own >= 0) close(own);
  if (!queued && listener && listener->accepts && !this->repeated) is_missed = true;
  this->deadline = now + ACCEPT_INTERVAL;
  if (is_only && is_missed)
    knock_again(this);
  else if (!queued && !(listener && listener->accepts && this->looks < MAX_LOOKS))
    join_by_splicing(this);
}

static void look_at_waiting(uint64_t now) {
  begin_knocks();
  for (struct waiting *this = all_waiting, *next; this; this = next) {
    next = this->next;
    if (this->connected && this->watch.fd < 0) watch_add(&this->watch, this->knock.fd, EPOLLIN, knock_heard);
    if (now < this->deadline) continue;
    if (this->connected)
      look_at_knock(this, now);
    else
      give_up(this);
  }
}

/* --- connections of other nodes, and of strangers --------------------------------------------------------------- */

static bool give_to_blocked(int peer, const struct endpoint *target, const struct endpoint *source,
                            const struct reply *reply);

struct dialler {
  struct watch watch;
  struct diallers *among;
  struct dialler *next, *previous; /* the oldest is first */
  uint64_t deadline;
  uint8_t nonce[NONCE], message[PROOF];
  size_t filled;
  struct reply reply;
  int fd;
};

static struct diallers {
  struct dialler *oldest, *newest;
  int count;
} strangers, nodes; /* those who have proven that they are nodes of this cluster, and may take their time */
static struct watch listener_watch;
static uint64_t paused_until; /* 0: not paused */

static void take_out(struct dialler *this) {
  *(this->previous ? &this->previous->next : &this->among->oldest) = this->next;
  *(this->next ? &this->next->previous : &this->among->newest) = this->previous;
  this->among->count--;
}

static void put_among(struct diallers *among, struct dialler *this, uint64_t limit) {
  this->among = among;
  this->deadline = now_ms() + limit;
  this->next = NULL;
  this->previous = among->newest;
  *(among->newest ? &among->newest->next : &among->oldest) = this;
  among->newest = this;
  among->count++;
}

/* Its descriptor is somebody else's from now on. */
static void forget_dialler(struct dialler *this) {
  watch_remove(&this->watch);
  take_out(this);
  free_later(this);
}

static void drop_dialler(struct dialler *this) {
  forget_dialler(this);
  reset(this->fd);
}

/* Receive what is there of a step. Whether it is complete. */
static bool receive_from(struct dialler *this, size_t size) {
  ssize_t got = recv(this->fd, this->message + this->filled, size - this->filled, 0);
  if (got <= 0 && !(got < 0 && errno == EAGAIN)) drop_dialler(this);
  if (got <= 0) return false;
  this->filled += (size_t)got;
  return this->filled == size;
}

/* Hand a connection over to the pod that it is for. */
static void pass_on(struct dialler *this) {
  struct endpoint ends[2];
  for (int i = 0; i < 2; i++) {
    uint32_t ip;
    uint16_t port;
    memcpy(&ip, this->message + 6 * i, 4);
    memcpy(&port, this->message + 6 * i + 4, 2);
    ends[i] = v4_endpoint(ntohl(ip), ntohs(port));
  }
  const struct reply *reply = this->message[REQUEST - 1] == IS_SURE ? NULL : &this->reply;
  forget_dialler(this);
  if (give_to_blocked(this->fd, &ends[0], &ends[1], reply)) return;
  if (!knock(this->fd, &ends[0], &ends[1], reply))
    refuse(this->fd, reply);
  else if (!reply)
    acknowledge(this->fd);
}

static void node_said(struct watch *watch, uint32_t events) {
  (void)events;
  struct dialler *this = (struct dialler *)watch;
  if (receive_from(this, REQUEST)) pass_on(this);
}

static void stranger_said(struct watch *watch, uint32_t events) {
  struct dialler *this = (struct dialler *)watch;
  if (!receive_from(this, PROOF)) return;
  if (!check_proof(this->nonce, this->message, this->reply.proof)) {
    drop_dialler(this);
    return;
  }
  take_out(this);
  put_among(&nodes, this, PROVEN_LIMIT);
  this->filled = 0;
  this->watch.ready = node_said;
  this->reply.with_proof = true;
  char byte;
  if (recv(this->fd, &byte, 1, MSG_PEEK) > 0) { /* its request has come too: one answer for both */
    node_said(watch, events);
    return;
  }
  this->reply.with_proof = false;
  if (send(this->fd, this->reply.proof, DIGEST, MSG_NOSIGNAL) != DIGEST) drop_dialler(this);
}

static void welcome(int fd) {
  struct dialler *this = calloc(1, sizeof *this);
  if (!this || watch_add(&this->watch, fd, EPOLLIN, stranger_said)) {
    free(this);
    reset(fd);
    return;
  }
  this->fd = fd;
  put_among(&strangers, this, HANDSHAKE_LIMIT);
  random_nonce(this->nonce);
  if (send(fd, this->nonce, NONCE, MSG_NOSIGNAL) != NONCE) drop_dialler(this);
}

/* Accept nobody for a moment: pods need the CPU more than strangers do. */
static void pause_accepting(void) {
  paused_until = now_ms() + FLOOD_PAUSE;
  watch_change(&listener_watch, 0);
  tick_soon();
}

static void accept_diallers(struct watch *watch, uint32_t events) {
  (void)events;
  for (int i = 0; i < ACCEPT_BATCH; i++) {
    int fd = accept4(watch->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (is_exhausted(errno) && strangers.oldest)
        drop_dialler(strangers.oldest);
      else if (is_exhausted(errno))
        pause_accepting();
      return;
    }
    if (strangers.count >= MAX_DIALLERS) drop_dialler(strangers.oldest);
    welcome(fd);
  }
  if (strangers.count > MAX_DIALLERS / 2) pause_accepting();
}

/* --- calls ------------------------------------------------------------------------------------------------------ */

struct blocked {        /* a caller that waits for a connection */
  struct watch watch;   /* of the listening socket */
  struct watch process; /* readable when the caller's process has ended */
  struct blocked *next, **previous;
  struct call call;
  int own, pidfd, family;
  uint64_t cookie;   /* of the listening socket */
  uint64_t deadline; /* 0: none */
};

/* A connection that was accepted, when it turned out that its caller was interrupted by a signal, or has no descriptor
 * left. Those of other nodes go back to the queue, so that the application sees them there; others are for its next
 * call. */
struct unclaimed {
  struct unclaimed *next;
  uint64_t since;
  uint64_t listener;
  int fd;
  struct endpoint peer;
};

static struct blocked *all_blocked;
static struct unclaimed *all_unclaimed;
static uint64_t next_validation;

static bool take_unclaimed(uint64_t listener, int *fd, struct endpoint *peer) {
  for (struct unclaimed **at = &all_unclaimed; *at; at = &(*at)->next)
    if ((*at)->listener == listener) {
      struct unclaimed *found = *at;
      *fd = found->fd;
      *peer = found->peer;
      *at = found->next;
      free(found);
      return true;
    }
  return false;
}

/* Make the connection of another node the application's own. */
static void adopt(int own, uint64_t cookie, int family, int peer, const struct endpoint *target,
                  const struct endpoint *source) {
  inherit_options(own, cookie, peer);
  set_name(peer, family, target, source);
  count(ACCEPTED);
}

/* The socket that an application gets for one that was in its queue: the same, or what the knock stands for.
 * Other connections to other pods may come from the knock's own port. */
static int exchange(int own, uint64_t cookie, int family, int fd, struct endpoint *peer) {
  struct endpoint target;
  bool is_known = own_address(fd, &target) && is_v4(&target);
  struct listener *listener = is_known ? find_listener(&target) : NULL;
  if (listener && listener->cookie != cookie) listener = NULL;
  if (listener) listener->accepted++;
  struct waiting *waiting = is_known && is_v4(peer) ? by_port[peer->port] : NULL;
  if (!waiting || !same_endpoint(&waiting->from, peer) || !same_endpoint(&waiting->target, &target)) return fd;
  struct waiting found = *waiting;
  confirm(&found);
  forget_waiting(waiting);
  end_later(found.knock, fd, cookie);
  if (listener && !found.knock.is_near) listener->heard = now_ms();
  adopt(own, cookie, family, found.peer, &found.target, &found.source);
  *peer = found.source;
  return found.peer;
}

static void put_back(uint64_t listener, int fd, const struct endpoint *peer) {
  struct endpoint target;
  if (own_address(fd, &target) && is_v4(&target) && is_v4(peer)) {
    const struct name *name = find_name(socket_cookie(fd));
    if (name) target = name->local;
    set_blocking(fd, false);
    if (within(&node.own_pods, v4(&target)) && knock(fd, &target, peer, NULL)) return;
  }
  struct unclaimed *kept = malloc(sizeof *kept);
  if (kept) {
    *kept = (struct unclaimed){.next = all_unclaimed, .listener = listener, .fd = fd, .peer = *peer, .since = now_ms()};
    all_unclaimed = kept;
  } else
    reset(fd);
}

/* Answer a call with a connection. If its caller does not get it, it is not lost. */
static void deliver(struct call *call, uint64_t listener, int family, int fd, const struct endpoint *peer) {
  int flags = is_accept4(call) ? (int)argument(call, 3) : 0;
  set_blocking(fd, !(flags & SOCK_NONBLOCK));
  int code = write_address(call, family, peer);
  if (code) {
    close(fd);
    answer(call, -code);
    return;
  }
  code = answer_with_descriptor(call, fd, flags & SOCK_CLOEXEC);
  if (!code) {
    close(fd);
    return;
  }
  put_back(listener, fd, peer);
  if (code == ENOENT)
    drop(call);
  else
    answer(call, -code);
}

/* Give the caller a connection, if there is one. Whether its call is done. */
static bool accept_now(struct call *call, int own, int family) {
  struct endpoint peer = {0};
  uint64_t cookie = socket_cookie(own);
  int fd;
  if (!take_unclaimed(cookie, &fd, &peer)) {
    struct pollfd ready = {.fd = own, .events = POLLIN};
    if (poll(&ready, 1, 0) <= 0) return false;
    struct sockaddr_in6 address;
    socklen_t size = sizeof address;
    fd = accept4(own, (struct sockaddr *)&address, &size, SOCK_CLOEXEC);
    if (fd < 0 && errno == EAGAIN) return false;
    if (fd < 0 && is_exhausted(errno)) { /* ours, not the caller's */
      let_continue(call);
      return true;
    }
    if (fd < 0) {
      answer(call, -errno);
      return true;
    }
    parse_address(&address, size, &peer);
    fd = exchange(own, cookie, family, fd, &peer);
  }
  deliver(call, cookie, family, fd, &peer);
  return true;
}

static void drop_unclaimed(uint64_t now) {
  for (struct unclaimed **at = &all_unclaimed; *at;) {
    struct unclaimed *old = *at;
    if (now < old->since + UNCLAIMED_LIMIT) {
      at = &old->next;
      continue;
    }
    *at = old->next;
    reset(old->fd);
    free(old);
  }
}

static void unblock(struct blocked *this) {
  watch_remove(&this->watch);
  watch_remove(&this->process);
  close(this->own);
  close(this->pidfd);
  drop(&this->call);
  *this->previous = this->next;
  if (this->next) this->next->previous = this->previous;
  free_later(this);
}

static void listener_ready(struct watch *watch, uint32_t events) {
  (void)events;
  struct blocked *this = (struct blocked *)watch;
  if (!is_waited_for(&this->call) || accept_now(&this->call, this->own, this->family)) unblock(this);
}

static void process_ended(struct watch *watch, uint32_t events) {
  (void)events;
  unblock((struct blocked *)((char *)watch - offsetof(struct blocked, process)));
}

/* Keep a call until there is a connection. Takes the copy of the caller's socket. */
static void block(struct call *call, int own, int family) {
  struct blocked *this = calloc(1, sizeof *this);
  int pidfd = this ? open_process(caller(call)) : -1;
  if (pidfd < 0 || watch_add(&this->watch, own, EPOLLIN, listener_ready)) {
    if (pidfd >= 0) close(pidfd);
    free(this);
    close(own);
    let_continue(call);
    return;
  }
  watch_add(&this->process, pidfd, EPOLLIN, process_ended);
  uint64_t limit = timeout_ms(own, SO_RCVTIMEO);
  this->call = *call;
  this->own = own;
  this->pidfd = pidfd;
  this->family = family;
  this->cookie = socket_cookie(own);
  this->deadline = limit ? now_ms() + limit : 0;
  if (limit) tick_soon();
  this->next = all_blocked;
  this->previous = &all_blocked;
  if (all_blocked) all_blocked->previous = &this->next;
  all_blocked = this;
}

/* The caller that has waited longest for a connection to a listening socket, or NULL. */
static struct blocked *find_blocked(uint64_t cookie) {
  struct blocked *found = NULL;
  for (struct blocked *this = all_blocked; this; this = this->next)
    if (this->cookie == cookie && is_waited_for(&this->call)) found = this;
  return found;
}

/* Give a connection of another node to a caller that waits for one, without a knock. Whether there is one.
 *
 * Where the last knock has arrived at that socket, the kernel would take the next one there too. It may not: a socket
 * may be bound to another address, be one of several for the port, or be behind rules of the pod's own. */
static bool give_to_blocked(int peer, const struct endpoint *target, const struct endpoint *source,
                            const struct reply *reply) {
  const struct listener *listener = find_listener(target);
  if (!listener || !is_heard(listener)) return false;
  struct blocked *this = find_blocked(listener->cookie);
  if (!this || queue_length(this->own)) return false;                    /* others came before */
  if (get_option(this->own, SOL_SOCKET, SO_REUSEPORT) > 0) return false; /* the kernel chooses one of several sockets */
  if (reply)
    say(peer, reply, YES);
  else
    acknowledge(peer);
  adopt(this->own, this->cookie, this->family, peer, target, source);
  deliver(&this->call, this->cookie, this->family, peer, source);
  unblock(this);
  return true;
}

void handle_accept(struct call *call) {
  int family, own = copy_descriptor(caller(call), socket_number(call));
  bool listens = own >= 0 && is_listener(own, &family) && get_option(own, SOL_SOCKET, SO_ACCEPTCONN) > 0;
  bool valid = !is_accept4(call) || !(argument(call, 3) & ~(uint64_t)(SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!listens || !valid || !note_listener(call, own, true))
    let_continue(call);
  else if (!accept_now(call, own, family)) {
    if (!(fcntl(own, F_GETFL) & O_NONBLOCK)) {
      block(call, own, family);
      return;
    }
    answer(call, -EAGAIN);
  }
  if (own >= 0) close(own);
}

/* Let go those whose callers were interrupted: our copies of their sockets would keep the ports open. */
static void drop_interrupted(void) {
  for (struct blocked *this = all_blocked, *next; this; this = next) {
    next = this->next;
    if (!is_waited_for(&this->call)) unblock(this);
  }
}

void handle_bind(struct call *call) {
  int own = copy_descriptor(caller(call), socket_number(call));
  bool native = own >= 0 && netns_cookie(own) == host_netns;
  if (own >= 0) close(own);
  drop_interrupted();
  if (native)
    answer(call, -EINVAL); /* it is connected, or was */
  else
    let_continue(call);
}

/* Whether one of them has a time limit that ends soon. */
static bool look_at_blocked(uint64_t now) {
  bool soon = false;
  if (now >= next_validation) {
    next_validation = now + VALID_INTERVAL;
    drop_interrupted();
  }
  for (struct blocked *this = all_blocked, *next; this; this = next) {
    next = this->next;
    if (this->deadline && now >= this->deadline) {
      answer(&this->call, -EAGAIN);
      unblock(this);
    } else
      soon |= this->deadline && this->deadline < now + SOON;
  }
  return soon;
}

void accepting_init(void) {
  watch_add(&listener_watch, node.listener, EPOLLIN, accept_diallers);
  knocking_init(begin_knocks);
}

bool accepting_tick(uint64_t now) {
  while (strangers.oldest && now >= strangers.oldest->deadline) drop_dialler(strangers.oldest);
  while (nodes.oldest && now >= nodes.oldest->deadline) drop_dialler(nodes.oldest);
  if (paused_until && now >= paused_until) {
    paused_until = 0;
    watch_change(&listener_watch, EPOLLIN);
  }
  end_spent();
  drop_old_near(now);
  look_at_waiting(now);
  drop_unclaimed(now);
  return look_at_blocked(now) || paused_until || without_socket;
}
