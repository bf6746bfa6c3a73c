/* The server of native sockets: what its parts know of each other. See __init__.py of this package for what it does. */
#pragma once
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* --- loop.c: events and time ------------------------------------------------------------------------------------ */

/* A descriptor that is watched. It is the first member of what it belongs to. */
struct watch {
  int fd; /* -1: not watched any more */
  bool is_urgent;
  void (*ready)(struct watch *, uint32_t events);
};

void loop_init(void);
int watch_add(struct watch *, int fd, uint32_t events, void (*ready)(struct watch *, uint32_t events));
int watch_urgent(struct watch *, int fd, void (*ready)(struct watch *, uint32_t events)); /* for EPOLLIN */
void watch_change(struct watch *, uint32_t events);
void watch_remove(struct watch *); /* does not close the descriptor */
void free_later(void *);           /* after the events at hand: one of them may still point to it */
uint64_t now_ms(void);
void tick_soon(void);                      /* there is a time limit to look at */
void loop_run(bool (*tick)(uint64_t now)); /* for ever; calls tick ten times a second, or as often as it asks for */

/* --- address.c: addresses --------------------------------------------------------------------------------------- */

struct endpoint {
  struct in6_addr ip; /* an address of IPv4 is mapped */
  uint16_t port;      /* in the host's order */
};

struct network {
  uint32_t first, last; /* IPv4, in the host's order */
};

bool is_v4(const struct endpoint *);
uint32_t v4(const struct endpoint *); /* in the host's order */
struct endpoint v4_endpoint(uint32_t ip, uint16_t port);
bool same_endpoint(const struct endpoint *, const struct endpoint *);
bool within(const struct network *, uint32_t ip);
bool parse_address(const void *address, size_t size, struct endpoint *);             /* either family, without scope */
socklen_t build_address(int family, const struct endpoint *, struct sockaddr_in6 *); /* for a socket of that family */
bool own_address(int fd, struct endpoint *);
bool peer_address(int fd, struct endpoint *);

/* --- target.c: the process that called -------------------------------------------------------------------------- */

bool read_memory(pid_t, uint64_t address, void *, size_t);
bool write_memory(pid_t, uint64_t to_first, const void *first, size_t first_size, uint64_t to_second,
                  const void *second, size_t second_size);
int open_process(pid_t thread);                                     /* a pidfd, or -1 */
int copy_descriptor(pid_t, int number);                             /* or -1 */
int descriptor_flags(pid_t, int number);                            /* of open(2), with O_CLOEXEC; or -1 */
bool is_shared(pid_t, int number, int own);                         /* by a second descriptor, or by an epoll set */
bool is_shared_by_links(pid_t, int number, int own, int directory); /* the same on older kernels */
uint32_t local_address_in(pid_t, const struct network *);           /* of its network namespace; 0 if there is none */
bool is_in_network_of(pid_t, int socket);                           /* whether both are of the same network namespace */
uint64_t owner_of_network(int socket); /* the user namespace that its network namespace belongs to; 0 if that fails */

/* --- options.c: sockets and their options ----------------------------------------------------------------------- */

int get_option(int fd, int level, int name); /* -1 if it fails */
int family_of(int fd);
bool is_tcp(int fd, int *family);
bool is_listener(int fd, int *family); /* it may listen for MPTCP too, as Go's do; what it accepts of others is TCP */
int tcp_state(int fd);
uint32_t queue_length(int listener);
uint64_t socket_cookie(int fd); /* no other socket has it, as long as the machine runs */
uint64_t netns_cookie(int fd);
uint64_t timeout_ms(int fd, int option); /* SO_RCVTIMEO or SO_SNDTIMEO; 0: none */
bool can_be_copied(int fd);
bool copy_options(int from, int to, int family); /* to a new one, or one like that */
/* As the kernel does it, to one that our own listener has accepted. */
void inherit_options(int listener, uint64_t cookie, int accepted);
void set_blocking(int fd, bool blocking);
void acknowledge(int fd); /* what has been received, at once: who has sent it may wait for that before it sends more */
void set_linger(int fd, bool resets); /* whether its end, also with this process, is a reset */
void reset(int fd);                   /* close with a reset */

/* --- memory.c: what outlives the server ------------------------------------------------------------------------- */

enum { MAX_CALLS = 4096, MAX_NAMES = 1 << 16, WAYS = 8, NO_ANSWER = INT32_MIN };
#define ANY_COOKIE UINT64_MAX
enum counter { OUTSIDE, PODS, ACCEPTED, GENERAL, SPLICED, COUNTERS };

struct slot {   /* a call in hand */
  uint32_t key; /* of the source it came from; 0: free */
  int32_t planned;
  struct seccomp_notif about;
};

struct name { /* the addresses of a socket as its application sees them */
  uint64_t cookie;
  int family; /* of the application's own socket: one that listens for both gets sockets of IPv4 from us */
  struct endpoint local, peer, real_local, real_peer;
};

struct memory {
  uint64_t counters[COUNTERS];
  uint64_t ticks; /* so that others see whether the server goes on */
  uint64_t turn;
  struct slot slots[MAX_CALLS];
  struct name names[MAX_NAMES];
};

extern struct memory *memory;
void count(enum counter);
void add_name(const struct name *);
void clean_names(void); /* make room where there is none left */
/* Whether the host has a connection between these ends. One in TIME-WAIT is none. */
bool is_connected(const struct endpoint *local, const struct endpoint *peer, uint64_t cookie);
void set_name(int fd, int family, const struct endpoint *local, const struct endpoint *peer);
struct name *find_name(uint64_t cookie);

/* --- notify.c: calls in hand and answers to them ---------------------------------------------------------------- */

enum { VALID_INTERVAL = 1000 }; /* milliseconds between looks whether callers still wait */
struct source;                  /* a descriptor of notifications */

struct call { /* each is answered once */
  struct source *source;
  struct slot *slot;
};

void calls_init(void);
void source_add(uint32_t key, int fd);
pid_t caller(const struct call *);
uint64_t argument(const struct call *, int number);
int socket_number(const struct call *);
bool is_accept4(const struct call *);
bool is_waited_for(const struct call *);
bool let_continue(struct call *);
bool answer(struct call *, int value); /* a negative one is an errno; false if nobody waits any more */
int answer_with_descriptor(struct call *, int fd, bool cloexec); /* 0, or an errno; ENOENT if nobody waits */
bool replace_descriptor(struct call *, int fd, bool cloexec, int answer_that_follows);
void drop(struct call *);
int write_address(const struct call *, int family, const struct endpoint *); /* 0, or an errno */

/* --- sha256.c, handshake.c: the proofs of network/handshake.py -------------------------------------------------- */

enum { DIGEST = 32, NONCE = 32, PROOF = 4 + NONCE + DIGEST };
/* After its proof, whenever it wants to: address and port of the pod that is wanted, and of the one that wants it, and
 * whether the dialler waits for the answer. The listener proves itself, and says YES or NO to those who wait. */
enum { REQUEST = 13 };
enum { ASKS = '?', IS_SURE = '!' };
enum { YES = '+', NO = '-' };
void hmac_sha256(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size, uint8_t digest[DIGEST]);
void random_nonce(uint8_t nonce[NONCE]);
/* What the dialler sends after the listener's nonce, and what it expects then. */
void dialler_proof(const uint8_t nonce[NONCE], uint32_t node, uint32_t ip, uint16_t port, uint8_t proof[PROOF],
                   uint8_t expected[DIGEST]);
/* Whether a dialler's proof is right for our own listener, and how we prove ourselves. */
bool check_proof(const uint8_t nonce[NONCE], const uint8_t proof[PROOF], uint8_t own[DIGEST]);
bool same_digest(const uint8_t *, const uint8_t *);

/* --- server.c --------------------------------------------------------------------------------------------------- */

struct node { /* what Python says of this node; see server.py */
  uint32_t index, last_index;
  uint32_t address;  /* of the host, IPv4, in its own order */
  uint32_t port;     /* of the listener */
  uint32_t pod_bits; /* of an address: they tell the pods of a node apart */
  struct network nodes, pods, services, own_pods;
  uint8_t key[DIGEST];
  int listener, control, fabric_sockets;
  int pass_through; /* whether every call is left to the kernel */
};

extern struct node node;
extern uint64_t host_netns;
void want_peer(uint32_t index);
void splice_in_python(int one, int other); /* takes both descriptors */
/* The address of the pod that a process and its socket, of that network namespace, belong to, or 0. */
uint32_t pod_of(pid_t, int own, uint64_t netns);

/* --- connecting.c ----------------------------------------------------------------------------------------------- */

void handle_connect(struct call *);
void handle_name(struct call *, bool peer);
void peer_found(uint32_t index, uint32_t ip, uint16_t port); /* port 0: there is none */
void services_changed(int table);                            /* a descriptor, see services.py */
bool connecting_tick(uint64_t now);                          /* whether there are any */

/* --- knocking.c ------------------------------------------------------------------------------------------------- */

struct knock { /* a connection to a pod's own listening socket */
  int fd;
  bool is_near; /* it was made within the pod's network, not from the node's */
};

void knocking_init(void (*there_is_one)(void)); /* what is called when there is another socket of the node's network */
int take_fabric_socket(void);                   /* of the node's network, or -1 */
int take_near_socket(uint64_t listener);        /* of the network of a listening socket, by its cookie; or -1 */
void drop_old_near(uint64_t now);               /* that nobody has taken */
/* End a knock that was accepted, by both ends, when nobody waits: nothing else about a connection takes as long. */
void end_later(struct knock, int accepted, uint64_t listener);
void end_spent(void);

/* --- accepting.c ------------------------------------------------------------------------------------------------ */

void accepting_init(void);
void handle_listen(struct call *);
void handle_accept(struct call *);
void handle_bind(struct call *);
bool accepting_tick(uint64_t now); /* whether it wants to be called again soon */
